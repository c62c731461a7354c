/** Colour scales: lightness rises evenly from low to high, so that they can be read without seeing colours. */

export type Rgb = readonly [number, number, number];

/** Red, green and blue (0..255) of a colour given as lightness, chroma and hue of OKLCH. */
export function oklch(lightness: number, chroma: number, hue: number): Rgb {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    gamma(4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short),
    gamma(-1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short),
    gamma(-0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short),
  ];
}

function gamma(linear: number): number {
  const value = linear <= 0.0031308 ? 12.92 * linear : 1.055 * Math.max(linear, 0) ** (1 / 2.4) - 0.055;
  return Math.round(255 * Math.min(1, Math.max(0, value)));
}

/** Points between which lightness, chroma and hue go straight. */
type Stop = readonly [at: number, lightness: number, chroma: number, hue: number];

function scale(stops: readonly Stop[], size = 256): Rgb[] {
  return Array.from({ length: size }, (_, index) => {
    const at = index / (size - 1);
    const next = Math.max(
      1,
      stops.findIndex((stop) => stop[0] >= at),
    );
    const from = stops[next - 1]!;
    const to = stops[next]!;
    const part = (at - from[0]) / (to[0] - from[0]);
    const mix = (position: 1 | 2 | 3) => from[position] + part * (to[position] - from[position]);
    return oklch(mix(1), mix(2), mix(3));
  });
}

/** Small to large: night blue over sea green to pale yellow. */
export const RISING: readonly Rgb[] = scale([
  [0, 0.2, 0.075, 282],
  [0.25, 0.38, 0.105, 262],
  [0.5, 0.56, 0.1, 205],
  [0.75, 0.75, 0.135, 150],
  [1, 0.955, 0.13, 104],
]);

/** Below and above: blue and orange, which every kind of eye tells apart; the middle is the page's own grey. */
export function parting(isDark: boolean): readonly Rgb[] {
  return isDark
    ? scale([
        [0, 0.83, 0.12, 235],
        [0.25, 0.58, 0.13, 245],
        [0.5, 0.27, 0, 250],
        [0.5, 0.27, 0, 58],
        [0.75, 0.62, 0.14, 58],
        [1, 0.9, 0.12, 80],
      ])
    : scale([
        [0, 0.36, 0.12, 255],
        [0.25, 0.66, 0.11, 245],
        [0.5, 0.965, 0, 250],
        [0.5, 0.965, 0, 62],
        [0.75, 0.73, 0.13, 62],
        [1, 0.45, 0.13, 45],
      ]);
}

/** NaN and Inf: a colour that no scale has. It is hatched as well. */
export const BAD: Rgb = [255, 0, 140];

/** Lines of one chart, in the order they are given out; they differ in lightness too. */
export const LINES: { light: readonly string[]; dark: readonly string[] } = {
  light: ["#0b63b5", "#d9730d", "#1b7f4b", "#8a3ea8", "#0e8fa3", "#8a5a2b", "#c2417c", "#4d5b6b"],
  dark: ["#6cb6ff", "#ffab5e", "#63d196", "#cf9bea", "#5fd4e6", "#d8b38a", "#ff9ccb", "#aab7c6"],
};

export function css(color: Rgb): string {
  return `rgb(${color[0]} ${color[1]} ${color[2]})`;
}
