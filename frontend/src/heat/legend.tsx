/** What the colours mean. */

import { css, type Rgb } from "../colors";
import { number, power } from "../format";
import { decades, position, type Range } from "./range";

export function Legend(props: {
  range: Range;
  scale: readonly Rgb[];
  hasBad: boolean;
  low?: string;
  high?: string;
  middle?: string;
}) {
  const { range, scale } = props;
  const stops = Array.from({ length: 17 }, (_, index) => css(scale[Math.round((index / 16) * (scale.length - 1))]!));
  return (
    <div class="legend" role="img" aria-label={legendText(range)}>
      {props.low && <span class="legend-end">{props.low}</span>}
      <div class="legend-scale">
        <i style={{ background: `linear-gradient(90deg, ${stops.join(", ")})` }} />
        {marks(range, props.middle ?? "usual").map(([at, text]) => (
          <span key={text} style={{ left: `${at * 100}%` }}>
            {text}
          </span>
        ))}
      </div>
      {props.high && <span class="legend-end">{props.high}</span>}
      <span class={`legend-bad ${props.hasBad ? "" : "is-absent"}`}>
        <i />
        NaN or Inf
      </span>
    </div>
  );
}

function marks(range: Range, middle: string): [number, string][] {
  if (range.kind === "ratio") {
    const steps =
      range.high > 1.5
        ? [-3, -2, -1, 0, 1, 2, 3]
        : range.high > 0.6
          ? [-1, -0.5, 0, 0.5, 1]
          : range.high > 0.29
            ? [-0.3, 0, 0.3]
            : [-range.high, 0, range.high];
    return steps
      .filter((step) => Math.abs(step) <= range.high + 1e-9)
      .map((step) => [position(step, range), step === 0 ? middle : quotient(step)]);
  }
  if (range.kind === "signed") {
    const ends: [number, string][] = [
      [0, number(-range.high, 2)],
      [0.5, "0"],
      [1, number(range.high, 2)],
    ];
    return ends;
  }
  const found = decades(range.low, range.high, 5);
  const shown = found.length >= 2 ? found : [range.low, range.high];
  return shown.map((value) => [
    position(value, range),
    `${range.isCut && value === range.high ? "≥ " : ""}${power(value)}`,
  ]);
}

/** Large ratios as factors, small ones as per cent. */
function quotient(step: number): string {
  const times = 10 ** step;
  if (Math.abs(step) >= 0.25) return `×${number(times, 2)}`;
  return `${step > 0 ? "+" : "−"}${number(Math.abs(times - 1) * 100, 2)} %`;
}

function legendText(range: Range): string {
  if (range.kind === "ratio") return "Colour: blue below, orange above";
  return `Colour: from ${number(range.low, 2)} (dark) to ${number(range.high, 2)} (bright), logarithmic`;
}
