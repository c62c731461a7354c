/** Values of the table of runs: as text, and as a colour. */

import type { TableColumn } from "../api";
import { css, RISING } from "../colors";
import { bytes, duration, moment, number, percent } from "../format";

export function cellText(value: unknown, kind: string): string {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  if (kind === "seconds") return duration(value);
  if (kind === "bytes") return bytes(value);
  if (kind === "time") return moment(value);
  if (kind === "share") return percent(value);
  return number(value);
}

/** The colour of a value between the lowest and the highest of its column; logarithmic if they are far apart. */
export function tintOf(value: unknown, column: TableColumn | undefined, texts: readonly string[]): string | null {
  if (!column || value === null || value === undefined) return null;
  if (typeof value !== "number") {
    const at = texts.indexOf(cellText(value, "text"));
    return at < 0 ? null : css(RISING[Math.round(spread(at / Math.max(1, texts.length - 1)))]!);
  }
  const { low, high } = column;
  if (low === null || high === null) return null;
  const isLog = low > 0 && high / low > 20;
  const place =
    high === low ? 0.5 : isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return css(RISING[Math.round(spread(place))]!);
}

/** The middle of the scale: its ends are nearly black and nearly white. */
function spread(place: number): number {
  return 40 + 190 * Math.min(1, Math.max(0, place));
}
