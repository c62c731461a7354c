import assert from "node:assert/strict";
import { test } from "node:test";
import type { Heat } from "../src/heat/folding";
import { pressKey, type Keyed } from "../src/heat/keyboard";
import { layOut } from "../src/heat/layout";
import type { Shown } from "../src/heat/pointer";
import { buildTree, outline } from "../src/heat/tree";

const NAMES = ["a.0", "a.1", "b.0"];
const OUTLINE = outline(buildTree(NAMES), new Set());

function many(rows: number) {
  return outline(buildTree(Array.from({ length: rows }, (_, row) => `row${row}`)), new Set());
}

test("a map of few rows is seen whole, one of very many scrolls and leaves room for the bar", () => {
  const few = layOut(OUTLINE, 1000, 900);
  assert.equal(few.height, 3 * few.lineHeight);
  assert.equal(few.isScrolled, false);
  assert.equal(few.gutterWidth + few.width + 1, 1000);
  const long = layOut(many(300), 1000, 900);
  assert.equal(long.isScrolled, true);
  assert.ok(long.seenHeight < long.height);
  assert.equal(long.gutterWidth + long.width + 1 + 12, 1000);
});

test("rows without names are as low as it takes to show all of them", () => {
  const layout = layOut(many(2000), 1000, 900);
  assert.equal(layout.isScrolled, false);
  assert.ok(layout.lineHeight < 1);
});

/** What a key does to a map of 3 rows and 60 columns. */
function press(key: string, shown: Shown | null, shiftKey = false): unknown[] {
  const done: unknown[] = [];
  const map: Keyed = {
    heat: { columns: 60 } as Heat,
    layout: layOut(OUTLINE, 1000, 900),
    lines: 3,
    shown,
    onMove: ({ line, column }) => done.push([line, column]),
    onOpen: ({ line, column }) => done.push("open", line, column),
    onZoom: (from, to) => done.push("zoom", from, to),
    onZoomOut: () => done.push("out"),
  };
  const event = { key, shiftKey, preventDefault: () => done.push("taken") };
  pressKey(event as unknown as KeyboardEvent, map);
  return done;
}

test("arrows begin at the newest column and stay on the map", () => {
  assert.deepEqual(press("ArrowUp", null), [[0, 59], "taken"]);
  const shown = { line: 1, column: 30, x: 0, y: 0 };
  assert.deepEqual(press("ArrowDown", shown), [[2, 30], "taken"]);
  assert.deepEqual(press("ArrowLeft", shown, true), [[1, 20], "taken"]);
  assert.deepEqual(press("ArrowDown", shown, true), [[2, 30], "taken"]);
});

test("keys open, zoom in around the cell and zoom out; other keys are left alone", () => {
  const shown = { line: 1, column: 30, x: 0, y: 0 };
  assert.deepEqual(press("Enter", shown), ["open", 1, 30, "taken"]);
  assert.deepEqual(press("Enter", null), []);
  assert.deepEqual(press("+", shown), ["zoom", 20, 40, "taken"]);
  assert.deepEqual(press("Escape", shown), ["out", "taken"]);
  assert.deepEqual(press("j", shown), []);
});
