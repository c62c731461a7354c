/** Smoothing: an exponential moving average over steps, with bias correction. */

/**
 * The smoothed values; a gap stays a gap and does not pull its neighbours.
 * `weight` is how much of the past is kept from one point to the next, 0 (nothing) to below 1.
 */
export function smooth(values: readonly (number | null)[], weight: number): (number | null)[] {
  if (weight <= 0) return [...values];
  let mean = 0;
  let seen = 0;
  return values.map((value) => {
    if (value === null || !Number.isFinite(value)) return null;
    mean = mean * weight + value * (1 - weight);
    seen = seen * weight + (1 - weight);
    return mean / seen;
  });
}
