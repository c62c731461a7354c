/** How a chart looks. */

import type uPlot from "uplot";
import type { Mark } from "../severity";
import { ink } from "../theme";
import { duration, number, power, whole } from "../format";
import type { Drawing, Line } from "./lines";
import { logTicks } from "./ticks";

export type Bands = { low: number; high: number; color: string }[];

interface Hooks {
  range: (u: uPlot) => [number, number];
  value: (height: number) => number;
  zoom: (first: number, last: number) => void;
  cursor: (index: number | null) => void;
  marks: (u: uPlot) => void;
}

export function makeOptions(
  width: number,
  height: number,
  lines: readonly Line[],
  drawing: Drawing,
  bands: Bands,
  hooks: Hooks,
): uPlot.Options {
  const soft = ink("soft");
  const grid = { stroke: ink("line"), width: 1 };
  const axis = { stroke: soft, grid, ticks: { ...grid, size: 4 }, font: "11px system-ui, sans-serif" };
  const isClock = drawing.x === "time" && !drawing.along && !drawing.starts.some(Boolean);
  return {
    width,
    height,
    cursor: {
      sync: { key: "vario" },
      drag: { x: true, y: false, setScale: false },
      points: { size: 6 },
      focus: { prox: 24 },
      // The line stands where the numbers that are shown belong.
      move: (u, left, top) => [snapped(u, left), top],
    },
    // Lines that are not under the pointer fade; a single one has nothing to stand out from.
    focus: { alpha: lines.length > 1 ? 0.3 : 1 },
    legend: { show: false },
    padding: [10, 12, 0, 0],
    scales: {
      x: { time: isClock, auto: false, range: hooks.range },
      y: { range: (_u, low, high) => spacious(low, high, drawing.isLog ? 0.3 : 0) },
    },
    axes: [
      {
        ...axis,
        // The clock has the date in a second line.
        size: isClock ? 44 : 28,
        values: isClock
          ? undefined
          : (_u, ticks) =>
              ticks.map((tick) =>
                drawing.x === "time"
                  ? duration(tick)
                  : drawing.along && drawing.along !== "step"
                    ? shortNumber(tick)
                    : Number.isInteger(tick)
                      ? whole(tick)
                      : "",
              ),
      },
      {
        ...axis,
        size: 66,
        ...(drawing.isLog
          ? {
              splits: (_u: uPlot, _axis: number, low: number, high: number) =>
                logTicks(10 ** low, 10 ** high).map(Math.log10),
            }
          : {}),
        values: (_u, ticks) =>
          ticks.map((tick) => (tick === null ? "" : (drawing.isLog ? power : shortNumber)(hooks.value(tick)))),
      },
    ],
    series: [
      {},
      ...lines.map((line) => ({
        stroke: line.color,
        width: 1.6,
        spanGaps: false,
        points: { show: (u: uPlot) => (u.data[0]?.length ?? 0) < 40, size: 4 },
      })),
      // Behind a smoothed line the values themselves stay visible.
      ...bands.flatMap(({ color }) => {
        const edge = { stroke: drawing.smooth > 0 ? `${color}59` : "transparent", width: 1, points: { show: false } };
        return [edge, edge];
      }),
    ],
    bands: bands.map(({ low, high, color }) => ({
      series: [high, low] as [number, number],
      fill: faint(color),
      dir: -1 as const,
    })),
    hooks: {
      setSelect: [
        (u) => {
          if (u.select.width > 4)
            hooks.zoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
      setCursor: [(u) => hooks.cursor(u.cursor.idx ?? null)],
      draw: [hooks.marks],
    },
  };
}

function snapped(u: uPlot, left: number): number {
  const x = left < 0 ? undefined : u.data[0]?.[u.posToIdx(left)];
  return x === undefined ? left : u.valToPos(x, "x");
}

const shortNumber = (value: number) => number(value, 4);

function faint(color: string): string {
  return `${color}3d`;
}

/** Padding above and below; a constant curve is centred in a range of at least `least`. */
function spacious(low: number | null, high: number | null, least: number): [number, number] {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const air = high > low ? (high - low) * 0.06 : least || Math.abs(high) * 0.1 || 1;
  return [low - air, high + air];
}

const INKS = { page: "red", warn: "amber", note: "note" } as const;

/** Incidents as vertical lines, NaN and Inf as marks at the bottom. */
export function drawMarks(u: uPlot, incidents: readonly Mark[], bad: readonly number[]): void {
  const { ctx } = u;
  const { left, top, width, height } = u.bbox;
  const density = devicePixelRatio || 1;
  ctx.save();
  ctx.beginPath();
  // Draw a mark at either end in full.
  ctx.rect(left - 6 * density, top - 10 * density, width + 12 * density, height + 10 * density);
  ctx.clip();
  for (const incident of incidents) {
    const x = u.valToPos(incident.step, "x", true);
    if (x < left - 1 || x > left + width + 1) continue;
    ctx.strokeStyle = ctx.fillStyle = ink(INKS[incident.severity]);
    ctx.lineWidth = density;
    ctx.setLineDash([4 * density, 3 * density]);
    ctx.beginPath();
    ctx.moveTo(x, top);
    ctx.lineTo(x, top + height);
    ctx.stroke();
    ctx.beginPath();
    ctx.moveTo(x - 5 * density, top - 8 * density);
    ctx.lineTo(x + 5 * density, top - 8 * density);
    ctx.lineTo(x, top);
    ctx.fill();
  }
  ctx.setLineDash([]);
  ctx.fillStyle = "rgb(255 0 140)";
  let until = -Infinity;
  for (const place of bad) {
    const x = u.valToPos(place, "x", true);
    if (x < until || x < left - 1 || x > left + width + 1) continue;
    ctx.fillRect(x - 1.5 * density, top + height - 9 * density, 3 * density, 9 * density);
    until = x + 4 * density;
  }
  ctx.restore();
}
