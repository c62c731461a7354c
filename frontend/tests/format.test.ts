import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, moment, scalarTitle, stepsDone } from "../src/format";

test("times of a broken clock are no date, and nothing fails", () => {
  for (const time of [1e18, -1e18, NaN, Infinity, null, undefined]) assert.equal(moment(time), "–");
  assert.equal(ago(-1e18, 1e9), "–");
  assert.equal(ago(2e9, 1e9), "just now");
  assert.match(moment(0), /^19(69|70)-\d\d-\d\d \d\d:\d\d$/);
});

test("how far a run is counts steps from one, and says when it is past its end", () => {
  assert.equal(stepsDone(239, 240), "240 of 240 steps");
  assert.equal(stepsDone(0, 1), "1 of 1 step");
  assert.equal(stepsDone(3279, 3000), "step 3,279, beyond the announced 3,000");
  assert.equal(stepsDone(12, null), "step 12");
  assert.equal(stepsDone(null, 10), "no step yet");
});

test("plain numbers are called the same on every screen", () => {
  assert.equal(scalarTitle("lr"), "learning rate");
  assert.equal(scalarTitle("step_seconds"), "step time, seconds");
  assert.equal(scalarTitle("waiting"), "wait time");
  assert.equal(scalarTitle("process_memory_bytes"), "process memory, bytes");
  assert.equal(scalarTitle("eval_loss"), "eval loss");
  assert.equal(scalarTitle("constructor"), "constructor");
});
