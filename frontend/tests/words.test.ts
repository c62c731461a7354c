import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, moment } from "../src/words";

test("times of a broken clock are no date, and nothing fails", () => {
  for (const time of [1e18, -1e18, NaN, Infinity, null, undefined]) assert.equal(moment(time), "–");
  assert.equal(ago(-1e18, 1e9), "–");
  assert.equal(ago(2e9, 1e9), "just now");
  assert.match(moment(0), /^19(69|70)-\d\d-\d\d \d\d:\d\d$/);
});
