/** How one chart is drawn: its own scale, smoothing and width. All of it is in the address. */

import { go } from "../navigation";
import type { View } from "../view";

export interface Look {
  log: boolean;
  smooth: number;
  wide: boolean;
}

/** What the address says about a chart; else what it says about all of them. */
export function lookOf(view: Pick<View, "draw" | "log" | "smooth">, chart: string): Look {
  const found = view.draw.map(parseLook).find((each) => each?.chart === chart);
  return found ? found.look : { log: view.log, smooth: view.smooth, wide: false };
}

/** `CHART|log|0.6|wide`; the name of the chart may have bars. */
export function parseLook(text: string): { chart: string; look: Look } | null {
  const parts = text.split("|");
  const [scale, smooth, width] = parts.slice(-3);
  if (parts.length < 4 || (scale !== "log" && scale !== "linear")) return null;
  const weight = Number(smooth);
  return {
    chart: parts.slice(0, -3).join("|"),
    look: {
      log: scale === "log",
      smooth: Number.isFinite(weight) ? Math.min(0.99, Math.max(0, weight)) : 0,
      wide: width === "wide",
    },
  };
}

export function formatLook(chart: string, look: Look): string {
  return [chart, look.log ? "log" : "linear", look.smooth, look.wide ? "wide" : ""].join("|");
}

/** The entries with one chart changed; none for a chart that looks as all others do. */
export function withLook(view: Pick<View, "draw" | "log" | "smooth">, chart: string, changes: Partial<Look>): string[] {
  const look = { ...lookOf(view, chart), ...changes };
  const others = view.draw.filter((each) => parseLook(each)?.chart !== chart);
  const isUsual = look.log === view.log && look.smooth === view.smooth && !look.wide;
  return isUsual ? others : [...others, formatLook(chart, look)];
}

export function LookControls(props: { chart: string; view: View; hasWidth?: boolean }) {
  const { chart, view } = props;
  const look = lookOf(view, chart);
  return (
    <span class="chart-look">
      <button
        type="button"
        class="link"
        aria-pressed={look.log}
        aria-label={`Log scale of ${chart}`}
        title="Logarithmic scale of this chart"
        onClick={() => go({ draw: withLook(view, chart, { log: !look.log }) })}
      >
        Log
      </button>
      <input
        type="range"
        min="0"
        max="0.99"
        step="0.01"
        value={look.smooth}
        aria-label={`Smoothing of ${chart}`}
        title={`Smoothing of this chart: ${look.smooth ? look.smooth.toFixed(2) : "off"}`}
        onInput={(event) => go({ draw: withLook(view, chart, { smooth: Number(event.currentTarget.value) }) }, true)}
      />
      {props.hasWidth && (
        <button
          type="button"
          class="link"
          aria-pressed={look.wide}
          aria-label={`Wide chart of ${chart}`}
          title="Full width"
          onClick={() => go({ draw: withLook(view, chart, { wide: !look.wide }) })}
        >
          Wide
        </button>
      )}
    </span>
  );
}
