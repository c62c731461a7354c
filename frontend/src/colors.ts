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

/** Anchors between which lightness, chroma and hue are interpolated linearly. */
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

/** Small to large: dark blue through sea green to pale yellow. */
export const RISING: readonly Rgb[] = scale([
  [0, 0.2, 0.075, 282],
  [0.25, 0.38, 0.105, 262],
  [0.5, 0.56, 0.1, 205],
  [0.75, 0.75, 0.135, 150],
  [1, 0.955, 0.13, 104],
]);

/** Below and above: blue and orange, which are colour-blind safe; the middle is the page's grey. */
export function diverging(isDark: boolean): readonly Rgb[] {
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

/** NaN and Inf: a colour that is in no scale, and hatched as well. */
export const BAD: Rgb = [255, 0, 140];

/** Token ids and masks: a grey that is in no scale. */
export const NO_SIZE_COLOUR: Rgb = [128, 128, 132];

/** Line colours of a chart, in order; they also differ in lightness. */
export const LINES: { light: readonly string[]; dark: readonly string[] } = {
  light: ["#0b63b5", "#d9730d", "#1b7f4b", "#8a3ea8", "#0e8fa3", "#8a5a2b", "#c2417c", "#4d5b6b"],
  dark: ["#6cb6ff", "#ffab5e", "#63d196", "#cf9bea", "#5fd4e6", "#d8b38a", "#ff9ccb", "#aab7c6"],
};

/** Beyond those: each time the hue and lightness that is farthest from all colours before it. */
const more: { light: string[]; dark: string[] } = { light: [], dark: [] };
const HUES = 36;
const LIGHTNESSES = { light: [0.34, 0.46, 0.58], dark: [0.66, 0.78, 0.9] } as const;

/** The colour of the nth line. */
export function lineColor(at: number, isDark: boolean): string {
  const theme = isDark ? "dark" : "light";
  const known = LINES[theme];
  if (at < known.length) return known[at]!;
  if (!more[theme].length) more[theme] = farApart(known, LIGHTNESSES[theme]);
  return more[theme][(at - known.length) % more[theme].length]!;
}

function farApart(known: readonly string[], lightnesses: readonly number[]): string[] {
  const left = lightnesses.flatMap((lightness) =>
    Array.from({ length: HUES }, (_, nth) => oklch(lightness, 0.13, (nth * 360) / HUES)),
  );
  const near = left.map((color) => Math.min(...known.map((other) => distance(color, parseHex(other)))));
  const found: string[] = [];
  while (found.length < left.length) {
    const next = near.indexOf(Math.max(...near));
    found.push(hex(left[next]!));
    left.forEach((color, index) => (near[index] = Math.min(near[index]!, distance(color, left[next]!))));
    near[next] = -1;
  }
  return found;
}

function distance(a: Rgb, b: Rgb): number {
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
}

function parseHex(color: string): Rgb {
  return [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16)) as unknown as Rgb;
}

function hex(color: Rgb): string {
  return `#${color.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

export function css(color: Rgb): string {
  return `rgb(${color[0]} ${color[1]} ${color[2]})`;
}
