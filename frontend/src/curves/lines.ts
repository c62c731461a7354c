/** Aligns curves on one axis for the chart. */

import type { Curve, Maybe, NewPoints } from "../api";
import { smooth } from "../smoothing";

export interface Line {
  key: string;
  label: string;
  color: string;
  curve: Curve;
}

/** A list for each line: undefined where the line has no point, null where it has one that cannot be drawn. */
export type Column = (number | null | undefined)[];

export interface Aligned {
  x: number[];
  last: Column[];
  low: (Column | null)[];
  high: (Column | null)[];
  /** Positions of NaN and Inf in any line. */
  bad: number[];
  /** From a height in the chart back to the value. */
  value: (height: number) => number;
}

export interface Drawing {
  isLog: boolean;
  smooth: number;
  x: "step" | "time";
  /** Seconds to subtract from each line's times, so that runs from different days overlap. */
  starts: readonly number[];
  /** What the axis is, if it is not a run's own steps or times; times are then since each run's start. */
  along?: string;
}

/** All lines over one sorted axis. */
export function align(lines: readonly Line[], drawing: Drawing): Aligned {
  const places = lines.map((line, index) => axis(line.curve, drawing.x, drawing.starts[index] ?? 0));
  const x = [...new Set(places.flat().filter((place): place is number => place !== null))].sort((a, b) => a - b);
  const at = new Map(x.map((place, index) => [place, index]));
  const unit = drawing.isLog ? 1 : unitOf(lines);
  const spread = (values: readonly Maybe[], place: readonly Maybe[]): Column => {
    const column: Column = Array.from({ length: x.length }, () => undefined);
    values.forEach((value, index) => {
      const where = place[index];
      if (where === null || where === undefined) return;
      column[at.get(where)!] = drawable(value, drawing.isLog, unit);
    });
    return column;
  };
  const bad = new Set<number>();
  lines.forEach(({ curve }, index) =>
    curve.bad.forEach((isBad, point) => {
      const where = places[index]![point];
      if (isBad && where !== null && where !== undefined) bad.add(where);
    }),
  );
  return {
    x,
    last: lines.map(({ curve }, index) => spread(smooth(curve.last, drawing.smooth), places[index]!)),
    low: lines.map(({ curve }, index) => (hasBand(curve, drawing) ? spread(curve.low, places[index]!) : null)),
    high: lines.map(({ curve }, index) => (hasBand(curve, drawing) ? spread(curve.high, places[index]!) : null)),
    bad: [...bad].sort((a, b) => a - b),
    value: drawing.isLog ? (height) => 10 ** height : (height) => height * unit,
  };
}

/** The newest point at or before a position: lines that share an axis rarely have points at the same positions. */
export function newestAt(column: Column, at: number): Column[number] {
  let index = Math.min(at, column.length - 1);
  while (index >= 0 && column[index] === undefined) index--;
  return column[index];
}

/** The chart cannot print more than seventeen digits, so very large and very small values are scaled. */
function unitOf(lines: readonly Line[]): number {
  let largest = 0;
  for (const { curve } of lines)
    for (const value of curve.high)
      if (value !== null && Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  for (const { curve } of lines)
    for (const value of curve.low)
      if (value !== null && Number.isFinite(value)) largest = Math.max(largest, Math.abs(value));
  return largest >= 1e12 || (largest > 0 && largest < 1e-6) ? 10 ** Math.floor(Math.log10(largest)) : 1;
}

/** A band where a point represents several values, and behind a smoothed line, so that nothing recorded is hidden. */
function hasBand(curve: Curve, drawing: Drawing): boolean {
  return !curve.is_whole || drawing.smooth > 0;
}

function axis(curve: Curve, kind: Drawing["x"], start: number): Maybe[] {
  if (kind === "step") return curve.steps;
  return curve.times.map((time) => (time === null ? null : time - start));
}

/** A logarithmic chart draws logarithms; values without one are skipped. */
function drawable(value: Maybe, isLog: boolean, unit: number): number | null {
  if (value === null || !Number.isFinite(value)) return null;
  if (!isLog) return unit === 1 ? value : value / unit;
  return value > 0 ? Math.log10(value) : null;
}

/** Append live points to a curve. */
export function appendPoints(curve: Curve, news: NewPoints): Curve {
  const added = news.curves.find(
    (each) =>
      each.quantity === curve.quantity &&
      each.target === curve.target &&
      (each.statistic === curve.statistic || !curve.statistic) &&
      String(each.rank) === String(curve.rank),
  );
  if (!added) return curve;
  const known = curve.steps[curve.steps.length - 1] ?? -Infinity;
  const fresh = added.steps.flatMap((step, index) => (step > known ? [index] : []));
  if (!fresh.length) return curve;
  const values = fresh.map((index) => added.values[index] ?? null);
  return {
    ...curve,
    steps: [...curve.steps, ...fresh.map((index) => added.steps[index]!)],
    last: [...curve.last, ...values],
    low: [...curve.low, ...values],
    high: [...curve.high, ...values],
    bad: [...curve.bad, ...fresh.map((index) => Boolean(added.bad?.[index]))],
    times: [...curve.times, ...fresh.map((index) => added.times?.[index] ?? null)],
  };
}
