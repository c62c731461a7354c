/** Very many curves in one chart: their range, their median, and the highest and lowest of them. */

import type { Curve, Maybe } from "../api";
import { plural } from "../format";
import type { Drawing, Line } from "./lines";

/** More runs, or more series, than these are not drawn one by one. */
export const MOST_RUNS = 16;
export const MOST_LINES = 64;
/** The key of the line for all. */
export const ALL_LINES = "all";
const PLACES = 300;
const SHOWN_ENDS = 2;

export interface Drawn {
  lines: readonly Line[];
  /** What is drawn, if it is not every curve. */
  text: string;
  /** Seconds to subtract from each line's times. */
  starts: readonly number[];
}

export function drawnLines(lines: readonly Line[], drawing: Pick<Drawing, "x" | "starts">, isDark: boolean): Drawn {
  const runs = new Set(lines.map((line) => line.curve.run)).size;
  if (runs <= MOST_RUNS && lines.length <= MOST_LINES) return { lines, text: "", starts: drawing.starts };
  const whole = together(lines, drawing, isDark ? "#aab7c6" : "#4d5b6b");
  const byEnd = lines
    .map((line) => ({ line, end: line.curve.last.findLast((value) => value !== null) ?? null }))
    .filter((each): each is { line: Line; end: number } => each.end !== null)
    .sort((a, b) => b.end - a.end)
    .map(({ line }) => line);
  const ends = [...new Set([...byEnd.slice(0, SHOWN_ENDS), ...byEnd.slice(-SHOWN_ENDS)])];
  const what = runs > MOST_RUNS ? `${plural(lines.length, "curve")} of ${runs} runs` : plural(lines.length, "curve");
  return {
    lines: [whole, ...ends],
    starts: drawing.starts.length ? [0, ...ends.map((line) => drawing.starts[lines.indexOf(line)] ?? 0)] : [],
    text: `${what}: the band is their range at each point, with the median and the ${SHOWN_ENDS} that end highest and lowest.`,
  };
}

/** One line for all: at common places the lowest, the highest and the median; NaN of any curve stays marked. */
function together(lines: readonly Line[], drawing: Pick<Drawing, "x" | "starts">, color: string): Line {
  const axes = lines.map(({ curve }, index) =>
    drawing.x === "step" ? curve.steps : curve.times.map((time) => (time ?? NaN) - (drawing.starts[index] ?? 0)),
  );
  const all = [...new Set(axes.flat().filter(Number.isFinite))].sort((a, b) => a - b);
  const places = thinned(all);
  const low: Maybe[] = [];
  const high: Maybe[] = [];
  const middle: Maybe[] = [];
  const isBad = places.map(() => false);
  const at = lines.map(() => 0);
  places.forEach((place, nth) => {
    const values: number[] = [];
    let lowest = Infinity;
    let highest = -Infinity;
    lines.forEach(({ curve }, index) => {
      const axis = axes[index]!;
      let newest: Maybe = null;
      while (at[index]! < axis.length && axis[at[index]!]! <= place) {
        const point = at[index]!++;
        newest = curve.last[point] ?? newest;
        lowest = Math.min(lowest, curve.low[point] ?? Infinity);
        highest = Math.max(highest, curve.high[point] ?? -Infinity);
        if (curve.bad[point]) isBad[nth] = true;
      }
      if (newest !== null) values.push(newest);
    });
    values.sort((a, b) => a - b);
    middle.push(values.length ? values[Math.floor((values.length - 1) / 2)]! : null);
    low.push(lowest === Infinity ? null : lowest);
    high.push(highest === -Infinity ? null : highest);
  });
  const first = lines[0]!.curve;
  const curve: Curve = {
    ...first,
    target: "",
    run: "",
    rank: "all",
    steps: places,
    times: places,
    low,
    high,
    last: middle,
    bad: isBad,
    is_whole: false,
  };
  return { key: ALL_LINES, label: `median of ${plural(lines.length, "curve")}`, color, curve };
}

function thinned(all: readonly number[]): number[] {
  if (all.length <= PLACES) return [...all];
  return Array.from({ length: PLACES }, (_, nth) => all[Math.floor(((nth + 1) * all.length) / PLACES) - 1]!);
}
