/** Maps values to positions on a colour scale. */

export interface Range {
  /** log: magnitudes; signed: both signs, by magnitude; ratio: log10 of a quotient, around zero. */
  kind: "log" | "signed" | "ratio";
  low: number;
  high: number;
  /** Whether values above `high` exist; they get its colour. */
  isCut: boolean;
}

/**
 * The range to colour values by. A spike of many orders of magnitude would leave one colour for all the rest, so the
 * range ends two orders above all but half a percent of the cells. `leastRatio` keeps noise around zero pale.
 */
export function findRange(values: Float32Array, kind: Range["kind"] | "auto" = "auto", leastRatio = 0.004): Range {
  const stride = Math.max(1, Math.floor(values.length / 200_000));
  const sample = new Float32Array(Math.ceil(values.length / stride));
  let num = 0;
  let hasNegative = false;
  let largest = 0;
  for (let index = 0; index < values.length; index++) {
    const value = values[index]!;
    if (!Number.isFinite(value) || value === 0) continue;
    if (value < 0) hasNegative = true;
    largest = Math.max(largest, Math.abs(value));
    if (index % stride === 0) sample[num++] = Math.abs(value);
  }
  const sizes = sample.subarray(0, num).sort();
  const found = kind === "auto" ? (hasNegative ? "signed" : "log") : kind;
  if (found === "ratio") {
    const end = ratioEnd(sizes, leastRatio);
    return { kind: found, low: -end, high: end, isCut: largest > end };
  }
  if (!largest) return { kind: found, low: 1e-1, high: 1, isCut: false };
  const most = quantile(sizes, 0.995) || largest;
  const high = largest > most * 100 ? most * 100 : largest;
  let low = quantile(sizes, 0.01) || high;
  low = Math.max(low, high * 1e-12);
  if (high / low < 1.5) low = high / 1.5;
  return { kind: found, low, high, isCut: largest > high };
}

function ratioEnd(sizes: Float32Array, least: number): number {
  return Math.min(3, Math.max(least, quantile(sizes, 0.998)));
}

function quantile(sorted: Float32Array, share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
}

/** The position of a value in its range, 0 to 1. */
export function position(value: number, range: Range): number {
  const { kind, low, high } = range;
  if (kind === "ratio") return clamp((value - low) / (high - low));
  const size = Math.abs(value);
  const part = size <= low ? 0 : clamp(Math.log(size / low) / Math.log(high / low));
  if (kind === "log") return part;
  return value === 0 ? 0.5 : 0.5 + (Math.sign(value) * (0.08 + 0.92 * part)) / 2;
}

function clamp(value: number): number {
  return Math.min(1, Math.max(0, value));
}

/** Each row relative to its median: log10 of the ratio, so that 0 is usual and 1 is ten times. */
export function againstUsual(values: Float32Array, rows: number, columns: number): Float32Array {
  const changed = new Float32Array(values.length).fill(NaN);
  for (let row = 0; row < rows; row++) {
    const usual = rowMiddle(values, row, columns);
    if (!(usual > 0)) continue;
    for (let column = 0; column < columns; column++) {
      const at = row * columns + column;
      const size = Math.abs(values[at]!);
      if (size > 0) changed[at] = Math.log10(size / usual);
      else if (size === 0) changed[at] = -3;
    }
  }
  return changed;
}

/** The median of a row's magnitudes: its usual value. */
export function rowMiddle(values: Float32Array, row: number, columns: number): number {
  const found = new Float32Array(columns);
  let num = 0;
  for (let column = 0; column < columns; column++) {
    const value = Math.abs(values[row * columns + column]!);
    if (Number.isFinite(value)) found[num++] = value;
  }
  const sizes = found.subarray(0, num).sort();
  return num ? sizes[num >> 1]! : NaN;
}

/** Whole powers of ten inside a range, thinned to at most `most`. */
export function decades(low: number, high: number, most = 6): number[] {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.max(1, Math.ceil((last - first + 1) / most));
  const found: number[] = [];
  for (let power = first; power <= last; power += every) found.push(10 ** power);
  return found;
}
