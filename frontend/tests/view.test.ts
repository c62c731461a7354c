import assert from "node:assert/strict";
import { test } from "node:test";
import { formatSeries, formatView, parseSeries, parseView, START, type View } from "../src/view";

test("a view comes back from its address as it was", () => {
  const view: View = {
    run: "deeper/a run & more",
    screen: "series",
    quantity: "gradient",
    statistic: "norm",
    rank: "spread",
    first: 0,
    last: 1200,
    series: ["gradient|layers.0.weight|norm", "scalar|loss|value"],
    runs: ["b", "c/d"],
    log: true,
    smooth: 0.6,
    x: "time",
    only: "attn weight",
    closed: ["layers.0", "layers.1"],
    colour: "change",
    table: true,
    lately: "50",
    top: "20",
    incident: 2,
    theme: "dark",
  };
  assert.deepEqual(parseView(formatView(view)), view);
});

test("what is as it starts stays out of the address", () => {
  assert.equal(formatView(START), "./");
  assert.equal(formatView({ ...START, run: "a", first: 0 }), "?run=a&first=0");
});

test("nonsense in an address is left out", () => {
  const view = parseView("?screen=nowhere&first=1e9x&last=&smooth=7&x=sideways&theme=pink&log=yes");
  assert.deepEqual(view, { ...START, smooth: 0.99 });
});

test("a series name keeps a target that has bars in it", () => {
  const name = { quantity: "scalar", target: "a|b", statistic: "value" };
  assert.deepEqual(parseSeries(formatSeries(name)), name);
  assert.deepEqual(parseSeries("loss"), { quantity: "scalar", target: "loss", statistic: "value" });
  assert.deepEqual(parseSeries("gradient|head.weight"), { quantity: "gradient", target: "head.weight", statistic: "" });
});
