import assert from "node:assert/strict";
import { test } from "node:test";
import type { RunRow } from "../src/api";
import { fold, keyOf } from "../src/runs/groups";

function row(run: string, group: string | null, changes: Partial<RunRow> = {}): RunRow {
  return { run, name: run, group, state: "finished", incidents: { note: 0, warn: 0, page: 0 }, ...changes } as RunRow;
}

const ROWS = [
  row("fold-3", "a", { state: "running", incidents: { note: 0, warn: 1, page: 0 } }),
  row("alone", null),
  row("fold-2", "a", { state: "crashed", incidents: { note: 0, warn: 0, page: 2 } }),
  row("other", "b"),
  row("fold", "a", { incidents: { note: 0, warn: 1, page: 0 } }),
];

test("a group is one line where its newest run stands", () => {
  const lines = fold(ROWS, new Set());
  assert.deepEqual(
    lines.map((line) => [line.row.name, line.size]),
    [
      ["fold-3", 3],
      ["alone", 1],
      ["other", 1],
    ],
  );
  assert.equal(lines[0]!.row.state, "running");
  assert.deepEqual(lines[0]!.row.incidents, { note: 0, warn: 2, page: 2 });
});

test("an opened group shows each of its runs as it is", () => {
  const lines = fold(ROWS, new Set([keyOf(ROWS[0]!)]));
  assert.deepEqual(
    lines.map((line) => [line.row.name, line.size, line.isInside, line.row.state]),
    [
      ["fold-3", 3, false, "running"],
      ["fold-2", 1, true, "crashed"],
      ["fold", 1, true, "finished"],
      ["alone", 1, false, "finished"],
      ["other", 1, false, "finished"],
    ],
  );
});

test("runs of which nobody knows a group stay alone", () => {
  assert.equal(fold([row("a", null), row("b", null)], new Set()).length, 2);
});
