/** Heat maps as rows of numbers; merges rows or columns without losing a spike or a NaN. */

import type { HeatHead, NewColumns } from "../api";
import { matches } from "../search";

export const RECORDED = 1;
export const NOT_FINITE = 2;
/** Token ids and masks: their numbers are no sizes. */
export const NO_SIZE = 4;

export interface Heat {
  head: HeatHead;
  targets: string[];
  groups: number[];
  /** First and last step of each column, both inclusive. */
  first: number[];
  last: number[];
  /** Row by row; NaN where there is nothing finite. */
  values: Float32Array;
  flags: Uint8Array;
  columns: number;
}

export interface Grid {
  rows: number;
  columns: number;
  values: Float32Array;
  flags: Uint8Array;
}

/** The heat map in the bytes the server sends: a length, a JSON head, float32 values, uint8 flags. */
export function decodeHeat(buffer: ArrayBuffer): Heat {
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length))) as HeatHead;
  const cells = head.rows * head.columns;
  const start = 4 + length;
  const values = new Float32Array(buffer.slice(start, start + 4 * cells));
  const flags = new Uint8Array(buffer.slice(start + 4 * cells, start + 5 * cells));
  markKinds(head.kinds, flags, head.columns);
  const { targets, groups, first, last, columns } = head;
  return { head, targets, groups, first, last, values, flags, columns };
}

function markKinds(kinds: readonly string[] | undefined, flags: Uint8Array, columns: number): void {
  kinds?.forEach((kind, row) => {
    if (!kind) return;
    for (let at = row * columns; at < (row + 1) * columns; at++) if (flags[at]) flags[at] = flags[at]! | NO_SIZE;
  });
}

/** Rows folded together: `spans` gives the first row and the one after the last of each new row. */
export function foldRows(grid: Grid, spans: readonly (readonly [number, number])[]): Grid {
  const { columns } = grid;
  const values = new Float32Array(spans.length * columns).fill(NaN);
  const flags = new Uint8Array(spans.length * columns);
  spans.forEach(([from, to], row) => {
    for (let source = from; source < to; source++)
      for (let column = 0; column < columns; column++)
        keepLarger(values, flags, row * columns + column, grid, source * columns + column);
  });
  return { rows: spans.length, columns, values, flags };
}

/** Merge columns so that at most `most` remain. */
export function foldColumns(grid: Grid, most: number): Grid {
  if (grid.columns <= most) return grid;
  const columns = Math.max(1, most);
  const values = new Float32Array(grid.rows * columns).fill(NaN);
  const flags = new Uint8Array(grid.rows * columns);
  for (let row = 0; row < grid.rows; row++)
    for (let source = 0; source < grid.columns; source++) {
      const column = Math.floor((source * columns) / grid.columns);
      keepLarger(values, flags, row * columns + column, grid, row * grid.columns + source);
    }
  return { rows: grid.rows, columns, values, flags };
}

function keepLarger(values: Float32Array, flags: Uint8Array, at: number, from: Grid, source: number): void {
  const value = from.values[source]!;
  const told = from.flags[source]!;
  // What has no size does not hide what has one.
  const before = flags[at]!;
  if (told & NO_SIZE && before && !(before & NO_SIZE)) {
    flags[at] = before | (told & NOT_FINITE);
    return;
  }
  if (before & NO_SIZE && told && !(told & NO_SIZE)) {
    values[at] = NaN;
    flags[at] = before & ~NO_SIZE;
  }
  const kept = values[at]!;
  if (Number.isNaN(kept) || Math.abs(value) > Math.abs(kept)) values[at] = Number.isNaN(value) ? kept : value;
  flags[at] = flags[at]! | told;
}

/** Append live columns, named by `names`. Beyond `most` columns, pairs are merged. */
export function appendColumns(heat: Heat, added: NewColumns, names: readonly string[], most: number): Heat {
  const known = heat.last.length ? heat.last[heat.last.length - 1]! : -Infinity;
  const fresh = added.steps.flatMap((step, index) => (step > known ? [index] : []));
  if (!fresh.length) return heat;
  const { rowOf, targets } = places(heat, names);
  const groups = [...heat.groups, ...targets.slice(heat.targets.length).map(() => 1)];
  const columns = heat.columns + fresh.length;
  const longer: Grid = {
    rows: targets.length,
    columns,
    values: new Float32Array(targets.length * columns).fill(NaN),
    flags: new Uint8Array(targets.length * columns),
  };
  for (let row = 0; row < heat.targets.length; row++) {
    const from = row * heat.columns;
    longer.values.set(heat.values.subarray(from, from + heat.columns), row * columns);
    longer.flags.set(heat.flags.subarray(from, from + heat.columns), row * columns);
  }
  const columnOf = new Map(fresh.map((index, position) => [index, heat.columns + position]));
  for (const [index, column] of columnOf)
    added.values[index]?.forEach((value, name) => {
      const row = rowOf[name];
      if (value === null || row === undefined) return;
      const at = row * columns + column;
      const kept = longer.values[at]!;
      if (!(Math.abs(kept) >= Math.abs(value))) longer.values[at] = value;
      longer.flags[at] = longer.flags[at]! | RECORDED;
    });
  for (const [name, index] of added.bad) {
    const column = columnOf.get(index);
    const row = rowOf[name];
    // A mask contains -inf on purpose.
    if (column === undefined || row === undefined || heat.head.kinds?.[row] === "mask") continue;
    longer.flags[row * columns + column] = RECORDED | NOT_FINITE;
  }
  markKinds(heat.head.kinds, longer.flags, columns);
  const steps = fresh.map((index) => added.steps[index]!);
  const { values, flags } = longer;
  const grown: Heat = {
    head: heat.head,
    targets,
    groups,
    first: [...heat.first, ...steps],
    last: [...heat.last, ...steps],
    values,
    flags,
    columns,
  };
  return columns > most ? halved(grown) : grown;
}

/**
 * The row of each name: its own, or, where rows stand for several targets, that of the last name before it. Names that
 * were not searched for have none, nor have token ids and masks that share a row with sizes.
 */
function places(heat: Heat, names: readonly string[]): { rowOf: (number | undefined)[]; targets: string[] } {
  const targets = [...heat.targets];
  const rows = new Map(targets.map((target, row) => [target, row]));
  const isGrouped = heat.groups.some((group) => group > 1);
  const leftOut = new Set(heat.head.left_out);
  let latest = 0;
  const rowOf = names.map((name) => {
    const row = rows.get(name);
    if (row !== undefined) latest = row;
    if (leftOut.has(name)) return undefined;
    if (row !== undefined) return row;
    if (!matches(name, heat.head.search ?? "")) return undefined;
    if (isGrouped) return latest;
    rows.set(name, targets.length);
    return targets.push(name) - 1;
  });
  return { rowOf, targets };
}

function halved(heat: Heat): Heat {
  const columns = Math.ceil(heat.columns / 2);
  const rows = heat.targets.length;
  const grid = { rows, columns: heat.columns, values: heat.values, flags: heat.flags };
  const values = new Float32Array(rows * columns).fill(NaN);
  const flags = new Uint8Array(rows * columns);
  for (let row = 0; row < rows; row++)
    for (let source = 0; source < heat.columns; source++)
      keepLarger(values, flags, row * columns + (source >> 1), grid, row * heat.columns + source);
  const first = heat.first.filter((_, index) => index % 2 === 0);
  const last = first.map((_, index) => heat.last[Math.min(2 * index + 1, heat.columns - 1)]!);
  return { ...heat, first, last, values, flags, columns };
}
