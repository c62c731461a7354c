/** Prepares a heat map for drawing: filters rows, folds modules, colours cells by value or change. */

import { matches } from "../search";
import { foldRows, NO_SIZE, type Grid, type Heat } from "./folding";
import { againstUsual, findRange, type Range } from "./range";
import { buildTree, closedNow, outline, startClosed, type Outline } from "./tree";

export interface Shape {
  outline: Outline;
  /** Index into the heat map's targets, for each row that is kept. */
  kept: number[];
  /** Values as recorded, a row for each line. */
  plain: Grid;
  /** What colours are computed from: the values, or each row relative to its usual value. */
  colored: Grid;
  range: Range;
  /** Modules that start folded. */
  start: ReadonlySet<string>;
}

export interface Wishes {
  only: string;
  closed: readonly string[];
  colour: "value" | "change";
  kind?: Range["kind"] | "auto";
}

/** With more rows than this, modules start folded. */
const MOST_LINES = 250;

/** Twice or half the usual value is the smallest change with full colour. */
const LEAST_CHANGE = 0.3;

export function shape(heat: Heat, wishes: Wishes): Shape {
  const kept = heat.targets.flatMap((target, row) => (matches(target, wishes.only) ? [row] : []));
  const { columns } = heat;
  const whole: Grid = { rows: heat.targets.length, columns, values: heat.values, flags: heat.flags };
  const chosen =
    kept.length === heat.targets.length
      ? whole
      : foldRows(
          whole,
          kept.map((row) => [row, row + 1] as const),
        );
  const nodes = buildTree(kept.map((row) => heat.targets[row]!));
  const start = startClosed(nodes, kept.length, MOST_LINES);
  const tree = outline(nodes, closedNow(start, wishes.closed));
  const spans = tree.lines.map((line) => [line.from, line.to] as const);
  const isFolded = tree.lines.some((line) => line.folded);
  const plain = isFolded ? foldRows(chosen, spans) : chosen;
  if (wishes.colour !== "change") {
    const range = findRange(sized(chosen), wishes.kind ?? "auto");
    return { outline: tree, kept, plain, colored: plain, range, start };
  }
  const values = againstUsual(chosen.values, chosen.rows, columns);
  const changed: Grid = { ...chosen, values };
  const colored = isFolded ? foldRows(changed, spans) : changed;
  const range = findRange(sized(changed), "ratio", LEAST_CHANGE);
  return { outline: tree, kept, plain, colored, range, start };
}

/** The values that have a size. */
function sized(grid: Grid): Float32Array {
  if (!grid.flags.some((flags) => flags & NO_SIZE)) return grid.values;
  return grid.values.map((value, at) => (grid.flags[at]! & NO_SIZE ? NaN : value));
}

/** Round steps that get a label, and their positions: [position, step]. */
export function ticks(first: readonly number[], last: readonly number[], most: number): [number, number][] {
  if (!first.length) return [];
  const low = first[0]!;
  const high = last[last.length - 1]!;
  const rough = Math.max(1, (high - low) / Math.max(1, most));
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = Math.max(1, [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough) ?? rough);
  // If few columns cover many steps, labels would overlap.
  const least = (0.6 * first.length) / Math.max(1, most);
  const found: [number, number][] = [];
  const start = Math.ceil(low / every) * every;
  // Counted, not added: beyond 2^53 consecutive steps are the same number.
  for (let index = 0; index <= Math.floor((high - start) / every); index++) {
    const step = start + index * every;
    const place = placeOf(first, last, step);
    if (found.length && place - found[found.length - 1]![0] < least) continue;
    found.push([place, step]);
  }
  return found;
}

/** The horizontal position of a step: in the middle of a single-step column, or between two columns. */
export function placeOf(first: readonly number[], last: readonly number[], step: number): number {
  const column = columnOf(last, step);
  const inside = (index: number, at: number) => {
    const num = last[index]! - first[index]! + 1;
    return index + (Math.min(num - 1, Math.max(0, at - first[index]!)) + 0.5) / num;
  };
  if (step >= first[column]! || column === 0) return inside(column, step);
  const [low, high] = [last[column - 1]!, first[column]!];
  const [left, right] = [inside(column - 1, low), inside(column, high)];
  return left + ((right - left) * (step - low)) / (high - low);
}

/** The column of a step, or the next one after it. */
export function columnOf(last: readonly number[], step: number): number {
  let low = 0;
  let high = last.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (last[middle]! < step) low = middle + 1;
    else high = middle;
  }
  return low;
}
