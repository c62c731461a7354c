import assert from "node:assert/strict";
import { test } from "node:test";
import type { Curve } from "../src/api";
import { align, appendPoints, newestAt, type Line } from "../src/curves/lines";
import { fractions, withinRun } from "../src/curves/pan-zoom";
import { removal } from "../src/curves/curve-removal";
import { logTicks } from "../src/curves/ticks";
import { smooth } from "../src/smoothing";
import { ago, bytes, count, duration, number, percent } from "../src/format";

function curve(steps: number[], last: (number | null)[], more: Partial<Curve> = {}): Curve {
  const bad = last.map((value) => value === null);
  return {
    run: "r",
    quantity: "scalar",
    target: "loss",
    statistic: "value",
    rank: "all",
    steps,
    low: last,
    high: last,
    last,
    bad,
    times: steps.map((step) => 100 + step),
    is_whole: true,
    ...more,
  };
}

function lines(...curves: Curve[]): Line[] {
  return curves.map((each, index) => ({ key: String(index), label: "", color: "#000000", curve: each }));
}

const PLAIN = { isLog: false, smooth: 0, x: "step" as const, starts: [] };

test("smoothing starts at the first value and goes around gaps", () => {
  assert.deepEqual(smooth([4, null, 4], 0.9), [4, null, 4]);
  const [first, second] = smooth([0, 1], 0.5);
  assert.equal(first, 0);
  assert.ok(Math.abs(second! - 2 / 3) < 1e-12);
  assert.deepEqual(smooth([1, 2], 0), [1, 2]);
});

test("curves of different steps share one axis, NaN is a gap and is marked", () => {
  const found = align(lines(curve([0, 2], [1, null]), curve([1, 2], [5, 6])), PLAIN);
  assert.deepEqual(found.x, [0, 1, 2]);
  assert.deepEqual(found.last, [
    [1, undefined, null],
    [undefined, 5, 6],
  ]);
  assert.deepEqual(found.bad, [2]);
});

test("a band is drawn where a point stands for many, and behind a smoothed line", () => {
  const thin = curve([0], [1], { is_whole: false, low: [0], high: [9] });
  assert.deepEqual(align(lines(thin), PLAIN).high, [[9]]);
  assert.deepEqual(align(lines(curve([0], [1])), PLAIN).high, [null]);
  assert.deepEqual(align(lines(curve([0], [1])), { ...PLAIN, smooth: 0.5 }).high, [[1]]);
});

test("a logarithmic chart draws logarithms and leaves out what has none", () => {
  const found = align(lines(curve([0, 1, 2], [0, -1, 1000])), { ...PLAIN, isLog: true });
  assert.deepEqual(found.last, [[null, null, 3]]);
  assert.equal(found.value(3), 1000);
});

test("values beyond what the chart can write are drawn in their own unit", () => {
  const found = align(lines(curve([0, 1], [1, 3e35])), PLAIN);
  assert.ok(found.last[0]![1]! < 10);
  assert.ok(Math.abs(found.value(found.last[0]![1]!) / 3e35 - 1) < 1e-12);
});

test("wall time of several runs starts at zero", () => {
  const found = align(lines(curve([0, 1], [1, 2])), { ...PLAIN, x: "time", starts: [100] });
  assert.deepEqual(found.x, [0, 1]);
});

test("points that come live are appended once", () => {
  const start = curve([0, 1], [1, 2]);
  const news = {
    curves: [
      {
        quantity: "scalar",
        target: "loss",
        statistic: "value",
        rank: "all",
        steps: [1, 2],
        values: [2, null],
        bad: [false, true],
        times: [null, null],
      },
    ],
  };
  const grown = appendPoints(start, news);
  assert.deepEqual(grown.steps, [0, 1, 2]);
  assert.deepEqual(grown.bad, [false, false, true]);
  assert.equal(appendPoints(grown, news), grown);
});

test("ticks of a logarithm always end", () => {
  assert.deepEqual(logTicks(0.5, 2000), [1, 10, 100, 1000]);
  assert.deepEqual(logTicks(2.9, 4.2), [3, 3.5, 4]);
  assert.equal(logTicks(1e-30, 1e30).length, 7);
  assert.deepEqual(logTicks(0, 1), []);
  for (const [low, high] of [
    [3.3e-17, 4e-17],
    [1.00001, 1.00002],
    [5e-300, 1e300],
  ] as const)
    assert.ok(logTicks(low, high).length < 30);
});

test("numbers read as people write them", () => {
  assert.deepEqual(
    [number(0), number(1234567), number(0.000012345), number(-0.5), number(12345), number(null), number(NaN)],
    ["0", "1.23e6", "1.23e-5", "−0.5", "12,345", "–", "NaN"],
  );
  assert.deepEqual([count(999), count(12345), count(1.24e9)], ["999", "12.3\u2009k", "1.24\u2009B"]);
  assert.deepEqual([bytes(512), bytes(3 * 1024 ** 3)], ["512\u2009B", "3\u2009GiB"]);
  assert.deepEqual(
    [duration(0.0012), duration(75), duration(7260), duration(90000)],
    ["1.2\u2009ms", "1\u2009min 15\u2009s", "2\u2009h 1\u2009min", "1\u2009d 1\u2009h"],
  );
  assert.deepEqual([percent(0.001), percent(0.5), percent(1)], ["<1\u2009%", "50\u2009%", "100\u2009%"]);
  assert.deepEqual([ago(100, 110), ago(0, 600), ago(0, 7200)], ["just now", "10 min ago", "2 h ago"]);
});

test("a range stays where the run has steps", () => {
  assert.deepEqual(withinRun(10.4, 19.6, 99), { first: 10, last: 19 });
  assert.deepEqual(withinRun(-8, 12, 99), { first: 0, last: 20 });
  assert.deepEqual(withinRun(90, 110, 99), { first: 79, last: 99 });
  assert.deepEqual(withinRun(90, 110, null), { first: 90, last: 110 });
  assert.deepEqual(withinRun(-5, 120, 99), { first: null, last: null });
  assert.deepEqual(withinRun(null, null, 99), { first: null, last: null });
  assert.deepEqual(withinRun(50, 50.2, 99), { first: 50, last: 51 });
});

test("under the cursor each line has its newest point, however the points of others lie", () => {
  const found = align(lines(curve([0, 2], [1, null]), curve([1, 3], [5, 6])), PLAIN);
  assert.deepEqual(
    [0, 1, 2, 3].map((at) => found.last.map((column) => newestAt(column, at))),
    [
      [1, undefined],
      [1, 5],
      [null, 5],
      [null, 6],
    ],
  );
});

test("no time is no seconds", () => {
  assert.equal(duration(0), "0\u2009s");
});

test("a curve that is removed takes its series, or the other run where that was all of it", () => {
  const loss = curve([0], [1]);
  const both = ["scalar|loss|value", "gradient|head.weight"];
  const head = curve([0], [1], { quantity: "gradient", target: "head.weight", statistic: "norm" });
  assert.deepEqual(removal(head, "head.weight", both, []), {
    text: "Remove head.weight",
    series: ["scalar|loss|value"],
    runs: [],
  });
  assert.deepEqual(removal(loss, "r", both, ["deeper/b"]), {
    text: "Remove loss of all runs",
    series: ["gradient|head.weight"],
    runs: ["deeper/b"],
  });
  assert.deepEqual(removal({ ...loss, run: "deeper/b" }, "b", ["scalar|loss|value"], ["c", "deeper/b"]), {
    text: "Remove the run b from the charts",
    series: ["scalar|loss|value"],
    runs: ["c"],
  });
  assert.deepEqual(removal(loss, "loss", ["scalar|loss|value"], []).series, [""]);
  assert.equal(removal({ ...loss, rank: 1 }, "loss · rank 1", both, []).text, "Remove loss of all ranks");
});

test("a range of epochs, tokens or seconds keeps the fractions that can be seen", () => {
  assert.deepEqual(fractions(0.25, 0.7512345678), { first: 0.25, last: 0.7512 });
  assert.deepEqual(fractions(0.25001234, 0.25002345), { first: 0.25001234, last: 0.25002345 });
  assert.deepEqual(fractions(1024.4, 8191.6), { first: 1024, last: 8192 });
  assert.deepEqual(fractions(1_700_000_000.25, 1_700_000_000.75), { first: 1_700_000_000.25, last: 1_700_000_000.75 });
  assert.deepEqual(fractions(null, null), { first: null, last: null });
});
