/** Tick positions on an axis. */

const MOST = 7;

/** Ticks of a logarithmic axis: powers of ten, with 2 and 5 between them if there are few, evenly spaced ones if there are none. */
export function logTicks(low: number, high: number): number[] {
  if (!(low > 0) || !(high > low) || !Number.isFinite(high)) return [];
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const inside = (factors: readonly number[], every = 1) => {
    const found: number[] = [];
    for (let power = first; power <= last; power += every)
      for (const factor of factors) {
        const tick = Number(`${factor}e${power}`);
        if (tick >= low && tick <= high) found.push(tick);
      }
    return found;
  };
  const powers = inside([1]);
  if (powers.length > MOST) return inside([1], Math.ceil(powers.length / MOST));
  for (const factors of [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
    const found = inside(factors);
    if (found.length >= 3) return found;
  }
  return evenTicks(low, high);
}

/** A handful of round numbers between two. */
export function evenTicks(low: number, high: number): number[] {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const every = [1, 2, 5, 10].map((part) => part * power).find((part) => part >= rough) ?? rough;
  const first = Math.ceil(low / every);
  const last = Math.floor(high / every);
  if (last - first > 20) return [];
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * every).toPrecision(12)));
}
