/** From a heat map to what is drawn: rows chosen, modules folded, cells coloured by value or by change. */

import { matches } from "../search";
import { foldRows, type Grid, type Heat } from "./folding";
import { againstUsual, findRange, type Range } from "./range";
import { buildTree, outline, type Outline } from "./tree";

export interface Shape {
  outline: Outline;
  /** Index into the heat map's targets, for each row that is kept. */
  kept: number[];
  /** Values as recorded, a row for each line. */
  plain: Grid;
  /** What colours are made from: the same, or each row against its usual. */
  colored: Grid;
  range: Range;
}

export interface Wishes {
  only: string;
  closed: readonly string[];
  colour: "value" | "change";
  kind?: Range["kind"] | "auto";
}

/** Twice or half the usual is the least that gets full colour. */
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
  const tree = outline(buildTree(kept.map((row) => heat.targets[row]!)), new Set(wishes.closed));
  const spans = tree.lines.map((line) => [line.from, line.to] as const);
  const isFolded = tree.lines.some((line) => line.folded);
  const plain = isFolded ? foldRows(chosen, spans) : chosen;
  if (wishes.colour !== "change") {
    const range = findRange(chosen.values, wishes.kind ?? "auto");
    return { outline: tree, kept, plain, colored: plain, range };
  }
  const values = againstUsual(chosen.values, chosen.rows, columns);
  const changed: Grid = { ...chosen, values };
  const colored = isFolded ? foldRows(changed, spans) : changed;
  return { outline: tree, kept, plain, colored, range: findRange(values, "ratio", LEAST_CHANGE) };
}

/** Even places for step labels: [column, step]. */
export function ticks(first: readonly number[], last: readonly number[], most: number): [number, number][] {
  if (!first.length) return [];
  const low = first[0]!;
  const high = last[last.length - 1]!;
  const rough = Math.max(1, (high - low) / Math.max(1, most));
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = Math.max(1, [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough) ?? rough);
  const found: [number, number][] = [];
  let column = 0;
  for (let step = Math.ceil(low / every) * every; step <= high; step += every) {
    while (column < last.length - 1 && last[column]! < step) column++;
    if (found.length && found[found.length - 1]![0] === column) continue;
    found.push([column, step]);
  }
  return found;
}

/** The column that holds a step, or the nearest after it. */
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
