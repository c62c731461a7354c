/** Axes of pictures over runs: where a value is between 0 and 1, and what to write beside it. */

import { number } from "../format";
import { evenTicks, logTicks } from "../curves/ticks";

export interface Axis {
  /** From 0 to 1; null where there is no such place. */
  place: (value: unknown) => number | null;
  ticks: { at: number; text: string }[];
  isLog: boolean;
  /** Whether there are only a few places, on which many values lie. */
  isDiscrete: boolean;
}

/** An axis for these values: numbers evenly or by their logarithm, texts side by side. */
export function makeAxis(values: readonly unknown[], isText: boolean, isLog: boolean): Axis {
  if (isText) {
    const texts = [...new Set(values.map(textOf))].sort();
    const at = (index: number) => (texts.length > 1 ? index / (texts.length - 1) : 0.5);
    return {
      place: (value) => {
        const index = texts.indexOf(textOf(value));
        return index < 0 ? null : at(index);
      },
      ticks: texts.map((text, index) => ({ at: at(index), text })),
      isLog: false,
      isDiscrete: true,
    };
  }
  const numbers = values.filter((value): value is number => typeof value === "number" && Number.isFinite(value));
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const scale = isLog ? Math.log : (value: number) => value;
  const span = scale(high) - scale(low);
  const place = (value: unknown) =>
    typeof value !== "number" || !Number.isFinite(value) || (isLog && value <= 0)
      ? null
      : span > 0
        ? (scale(value) - scale(low)) / span
        : 0.5;
  const distinct = [...new Set(numbers)].sort((a, b) => a - b);
  const marked = !numbers.length
    ? []
    : distinct.length <= 6
      ? distinct
      : isLog
        ? logTicks(low, high)
        : evenTicks(low, high);
  return {
    place,
    ticks: marked.map((value) => ({ at: place(value) ?? 0, text: number(value) })),
    isLog,
    isDiscrete: distinct.length <= 6,
  };
}

function textOf(value: unknown): string {
  if (value === null || value === undefined) return "none";
  return typeof value === "string" ? value : JSON.stringify(value);
}
