import assert from "node:assert/strict";
import { test } from "node:test";
import type { Incident } from "../src/api";
import { diverging, RISING, type Rgb } from "../src/colors";
import { appendColumns, decodeHeat, foldColumns, foldRows, NOT_FINITE, RECORDED, type Heat } from "../src/heat/folding";
import { againstUsual, decades, findRange, position } from "../src/heat/range";
import { gatherFlags } from "../src/heat/marks";
import { columnOf, placeOf, shape, ticks } from "../src/heat/shape";
import { rowFacts } from "../src/heat/table";
import { matches } from "../src/search";

function heat(targets: string[], rows: number[][], groups = targets.map(() => 1)): Heat {
  const columns = rows[0]?.length ?? 0;
  const values = Float32Array.from(rows.flat());
  const flags = Uint8Array.from(rows.flat(), (value) => (Number.isNaN(value) ? RECORDED | NOT_FINITE : RECORDED));
  const steps = Array.from({ length: columns }, (_, column) => column);
  const head = {
    quantity: "gradient",
    statistic: "norm",
    rank: "all",
    targets,
    groups,
    first: steps,
    last: steps,
    rows: targets.length,
    columns,
    kinds: [],
    left_out: [],
    is_rollup: false,
    low: null,
    high: null,
    step: columns - 1,
  };
  return { head, targets, groups, first: steps, last: steps, values, flags, columns };
}

test("the bytes of the server are read back", () => {
  const head = {
    quantity: "weight",
    statistic: "norm",
    rank: "all",
    targets: ["ä", "b"],
    groups: [1, 1],
    first: [0],
    last: [4],
    rows: 2,
    columns: 1,
    is_rollup: false,
    low: 1,
    high: 2,
  };
  let text = new TextEncoder().encode(JSON.stringify(head));
  const padded = new Uint8Array(Math.ceil(text.length / 4) * 4).fill(32);
  padded.set(text);
  text = padded;
  const buffer = new ArrayBuffer(4 + text.length + 8 + 2);
  new DataView(buffer).setUint32(0, text.length, true);
  new Uint8Array(buffer, 4).set(text);
  new Float32Array(buffer, 4 + text.length, 2).set([1.5, NaN]);
  new Uint8Array(buffer, 4 + text.length + 8).set([1, 3]);
  const found = decodeHeat(buffer);
  assert.deepEqual(found.targets, ["ä", "b"]);
  assert.deepEqual([...found.values], [1.5, NaN]);
  assert.deepEqual([...found.flags], [1, 3]);
});

test("folding keeps the largest in magnitude and every NaN", () => {
  const grid = {
    rows: 2,
    columns: 4,
    values: Float32Array.of(1, -9, 2, 2, NaN, 3, 4, 5),
    flags: Uint8Array.of(1, 1, 1, 1, 3, 1, 1, 1),
  };
  const columns = foldColumns(grid, 2);
  assert.deepEqual([...columns.values], [-9, 2, 3, 5]);
  assert.deepEqual([...columns.flags], [1, 1, 3, 1]);
  const rows = foldRows(grid, [[0, 2]]);
  assert.deepEqual([...rows.values], [1, -9, 4, 5]);
  assert.deepEqual([...rows.flags], [3, 1, 1, 1]);
});

test("columns that come live are appended once, by name", () => {
  const start = heat(
    ["a", "b"],
    [
      [1, 2],
      [3, 4],
    ],
  );
  const news = {
    steps: [1, 2, 3],
    targets: ["c"],
    values: [
      [9, 9, 9],
      [40, 10, 7],
      [41, null, 8],
    ],
    bad: [[2, 2]] as [number, number][],
  };
  const grown = appendColumns(start, news, ["b", "a", "c"], 100);
  assert.deepEqual(grown.targets, ["a", "b", "c"]);
  assert.deepEqual(grown.last, [0, 1, 2, 3]);
  assert.deepEqual(Array.from(grown.values.slice(0, 4)), [1, 2, 10, NaN]);
  assert.deepEqual(Array.from(grown.values.slice(4, 8)), [3, 4, 40, 41]);
  assert.deepEqual(Array.from(grown.values.slice(8)), [NaN, NaN, 7, 8]);
  assert.equal(grown.flags[11]! & NOT_FINITE, NOT_FINITE);
  assert.equal(appendColumns(grown, news, ["b", "a", "c"], 100), grown);
});

test("of a searched heat map only what was searched for grows", () => {
  const start = heat(["a.weight"], [[1]], [2]);
  start.head.search = "weight";
  const news = { steps: [1], targets: [], values: [[5, 70, -6, 8]], bad: [[1, 0]] as [number, number][] };
  const grown = appendColumns(start, news, ["a.weight", "a.bias", "b.weight", "b.bias"], 100);
  assert.deepEqual(grown.targets, ["a.weight"]);
  assert.deepEqual([...grown.values], [1, -6]);
  assert.equal(grown.flags[1]! & NOT_FINITE, 0);
});

test("past the limit two columns become one, and rows that stand for several stay so", () => {
  const start = heat(
    ["a", "c"],
    [
      [1, 2],
      [3, 4],
    ],
    [2, 1],
  );
  const grown = appendColumns(start, { steps: [2], targets: [], values: [[5, -50, 6]], bad: [] }, ["a", "b", "c"], 2);
  assert.deepEqual(grown.targets, ["a", "c"]);
  assert.deepEqual(
    [grown.first, grown.last],
    [
      [0, 2],
      [1, 2],
    ],
  );
  assert.deepEqual([...grown.values], [2, -50, 4, 6]);
});

test("token ids and masks that share a row with sizes stay out of it live", () => {
  const start = heat(["ids", "c"], [[1], [3]], [2, 2]);
  start.head.left_out = ["ids", "mask"];
  const news = { steps: [1], targets: [], values: [[40_000, 2, 4, null]], bad: [[3, 0]] as [number, number][] };
  const grown = appendColumns(start, news, ["ids", "b", "c", "mask"], 100);
  assert.deepEqual(grown.targets, ["ids", "c"]);
  assert.deepEqual([...grown.values], [1, 2, 3, 4]);
  assert.ok(grown.flags.every((flags) => flags === RECORDED));
});

test("one spike of many orders does not leave one colour for the rest", () => {
  const values = Float32Array.from({ length: 1000 }, (_, index) => 1 + index / 1000);
  values[500] = 1e30;
  const range = findRange(values);
  assert.equal(range.kind, "log");
  assert.ok(range.isCut);
  assert.ok(range.high < 1000, String(range.high));
  assert.equal(position(1e30, range), 1);
  assert.ok(position(2, range) - position(1, range) > 0.05);
});

test("both signs get a scale around zero", () => {
  const range = findRange(Float32Array.of(-1, 0, 1, 0.5));
  assert.equal(range.kind, "signed");
  assert.equal(position(0, range), 0.5);
  assert.ok(position(-1, range) < 0.01 && position(1, range) > 0.99);
});

test("nothing, zeros and constants have a range too", () => {
  for (const values of [[], [0, 0], [3, 3], [NaN]]) {
    const range = findRange(Float32Array.from(values));
    assert.ok(range.high > range.low, JSON.stringify(values));
  }
});

test("a row against its own usual is zero where it is as usual", () => {
  const changed = againstUsual(Float32Array.of(2, 2, 20, NaN), 1, 4);
  assert.deepEqual([...changed], [0, 0, 1, NaN]);
});

test("rows are chosen by words and stars, modules fold", () => {
  assert.ok(matches("layers.0.attn.weight", "attn 0"));
  assert.ok(matches("layers.0.attn.weight", "*.weight"));
  assert.ok(!matches("layers.0.attn.weight", "*.bias"));
  const found = shape(heat(["m.a", "m.b", "m.c", "z"], [[1], [5], [3], [2]]), {
    only: "",
    closed: ["m"],
    colour: "value",
  });
  assert.equal(found.outline.lines.length, 2);
  assert.deepEqual([...found.plain.values], [5, 2]);
  assert.equal(shape(heat(["m.a", "z"], [[1], [2]]), { only: "z", closed: [], colour: "value" }).kept.length, 1);
});

test("steps find their column, labels stand at round steps", () => {
  assert.equal(columnOf([9, 19, 29], 10), 1);
  assert.equal(columnOf([9, 19, 29], 99), 2);
  const first = Array.from({ length: 100 }, (_, column) => column * 10);
  const last = first.map((step) => step + 9);
  assert.deepEqual(ticks(first, last, 5), [
    [0.05, 0],
    [20.05, 200],
    [40.05, 400],
    [60.05, 600],
    [80.05, 800],
  ]);
  assert.deepEqual(decades(0.5, 2000, 6), [1, 10, 100, 1000]);
});

test("a step stands between the columns that were measured around it, and its label and its flag stand there too", () => {
  const every = [0, 50, 100, 150];
  assert.equal(placeOf(every, every, 100), 2.5);
  assert.ok(Math.abs(placeOf(every, every, 134) - (2.5 + 34 / 50)) < 1e-9);
  assert.equal(placeOf(every, every, -5), 0.5);
  assert.equal(placeOf(every, every, 999), 3.5);
  assert.equal(placeOf([0, 10], [9, 19], 10), 1.05);
  assert.deepEqual(
    ticks(every, every, 8).map(([place, step]) => [Number(place.toFixed(6)), step]),
    [0, 20, 40, 60, 80, 100, 120, 140].map((step) => [Number((0.5 + step / 50).toFixed(6)), step]),
  );
  const measured = { ...heat(["a"], [[1, 1, 1, 1]]), first: every, last: every };
  const [flag] = gatherFlags([{ step: 134 } as Incident], measured, 400);
  assert.ok(Math.abs(flag!.x - 318) < 1e-6);
});

test("labels of steps that share a few columns do not cover each other", () => {
  const steps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 1000];
  const places = ticks(steps, steps, 5).map(([place]) => place);
  places.forEach((place, index) => index && assert.ok(place - places[index - 1]! >= 1.2));
});

test("what is newest in a row is not finite once it has become so", () => {
  const broken = heat(
    ["a", "b"],
    [
      [1, 2, NaN, NaN],
      [1, NaN, 3, 4],
    ],
  );
  assert.deepEqual([rowFacts(broken, 0).newest, rowFacts(broken, 0).badAt], [NaN, 2]);
  assert.equal(rowFacts(broken, 1).newest, 4);
  broken.flags[7] = 0;
  broken.values[7] = NaN;
  assert.equal(rowFacts(broken, 1).newest, 3);
  broken.flags[6] = RECORDED | NOT_FINITE;
  assert.ok(Number.isNaN(rowFacts(broken, 1).newest));
});

function lightness([red, green, blue]: Rgb): number {
  const linear = [red, green, blue].map((part) =>
    part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * linear[0]! + 0.7152 * linear[1]! + 0.0722 * linear[2]!;
}

test("the rising scale can be read without seeing colours: lightness only rises", () => {
  RISING.forEach(
    (color, index) => index && assert.ok(lightness(color) >= lightness(RISING[index - 1]!) - 1e-3, String(index)),
  );
  assert.ok(lightness(RISING[255]!) - lightness(RISING[0]!) > 0.7);
});

test("the diverging scale is lightest or darkest in the middle, in both themes", () => {
  for (const isDark of [false, true]) {
    const colors = diverging(isDark).map(lightness);
    const middle = colors[127]!;
    assert.ok(Math.abs((isDark ? Math.min(...colors) : Math.max(...colors)) - middle) < 0.01);
  }
});

test("steps beyond what a number tells apart have few ticks, and end", () => {
  const first = [2 ** 62, 2 ** 62 + 1024];
  assert.ok(ticks(first, first, 5).length <= 2);
  assert.deepEqual(ticks([1e9, 1e9 + 10], [1e9 + 9, 1e9 + 19], 2), [
    [0.05, 1e9],
    [1.05, 1e9 + 10],
  ]);
});
