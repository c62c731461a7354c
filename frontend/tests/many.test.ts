import assert from "node:assert/strict";
import { test } from "node:test";
import { lineColor } from "../src/colors";
import { drawnLines, MOST_LINES, MOST_RUNS } from "../src/curves/extremes";
import type { Line } from "../src/curves/lines";
import { formatLook, lookOf, parseLook, withLook } from "../src/curves/look";
import { isSame, moved } from "../src/runs/arrangement";

function line(run: string, values: (number | null)[], label = run): Line {
  return {
    key: label,
    label,
    color: "#000000",
    curve: {
      run,
      quantity: "scalar",
      target: label,
      statistic: "value",
      rank: "all",
      steps: values.map((_, step) => step),
      times: values.map((_, step) => step),
      low: values,
      high: values,
      last: values,
      bad: values.map((value) => value === null),
      is_whole: true,
    },
  };
}

const AXIS = { x: "step", starts: [] } as const;

test("a few curves are drawn one by one", () => {
  const lines = Array.from({ length: MOST_RUNS }, (_, run) => line(`run${run}`, [run, run]));
  assert.deepEqual(drawnLines(lines, AXIS, false), { lines, text: "", starts: [] });
  const series = Array.from({ length: MOST_LINES }, (_, nth) => line("one", [nth], `series${nth}`));
  assert.equal(drawnLines(series, AXIS, false).lines.length, MOST_LINES);
});

test("very many are their range and median, and nothing they reached is lost", () => {
  const lines = Array.from({ length: MOST_RUNS + 1 }, (_, run) => line(`run${run}`, [run, run === 3 ? null : 2 * run]));
  const { lines: drawn, text } = drawnLines(lines, AXIS, false);
  assert.match(text, /^17 curves of 17 runs: the band is their range/);
  const [whole, ...ends] = drawn;
  assert.deepEqual(whole!.curve.low, [0, 0]);
  assert.deepEqual(whole!.curve.high, [16, 32]);
  assert.equal(whole!.curve.last[0], 8);
  assert.deepEqual(whole!.curve.bad, [false, true]);
  assert.deepEqual(
    ends.map((each) => each.label),
    ["run16", "run15", "run1", "run0"],
  );
});

test("more than 64 series of one run are drawn together as well", () => {
  const lines = Array.from({ length: 200 }, (_, nth) => line("one", [nth], `series${nth}`));
  const { lines: drawn, text } = drawnLines(lines, AXIS, false);
  assert.equal(drawn.length, 5);
  assert.match(text, /^200 curves: /);
});

test("forty colours can be told apart", () => {
  for (const isDark of [false, true]) {
    const colors = Array.from({ length: 40 }, (_, at) => lineColor(at, isDark));
    const parts = colors.map((color) => [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)));
    for (const [at, one] of parts.entries())
      for (const other of parts.slice(0, at))
        assert.ok(Math.hypot(...one.map((part, index) => part - other[index]!)) > 24, `${at} ${colors[at]}`);
  }
});

test("one chart has its own scale and smoothing, and all together take them back", () => {
  const view = { draw: [] as string[], log: false, smooth: 0 };
  const draw = withLook(view, "a|b", { log: true, smooth: 0.5 });
  assert.deepEqual(draw, ["a|b|log|0.5|"]);
  assert.deepEqual(lookOf({ ...view, draw }, "a|b"), { log: true, smooth: 0.5, wide: false });
  assert.deepEqual(lookOf({ ...view, draw }, "loss"), { log: false, smooth: 0, wide: false });
  assert.deepEqual(withLook({ ...view, draw }, "a|b", { log: false, smooth: 0 }), []);
  assert.deepEqual(parseLook(formatLook("x", { log: false, smooth: 0, wide: true }))?.look.wide, true);
  assert.equal(parseLook("nonsense"), null);
});

test("charts are moved and compared", () => {
  assert.deepEqual(moved(["a", "b", "c"], "a", 1), ["b", "a", "c"]);
  assert.deepEqual(moved(["a", "b", "c"], "c", 1), ["a", "b", "c"]);
  const one = { numbers: ["a"], draw: ["a|log|0|", "b|log|0|"], by: "", along: "", best: false, log: false, smooth: 0 };
  assert.ok(isSame(one, { ...one, draw: one.draw.toReversed() }));
  assert.ok(!isSame(one, { ...one, numbers: ["b"] }));
});
