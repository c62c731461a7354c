/** The keyboard on a heat map: arrows move from cell to cell, Enter opens the series, plus and minus zoom. */

import type { Heat } from "./folding";
import type { Layout } from "./layout";
import type { Shown } from "./pointer";

export interface Keyed {
  heat: Heat;
  layout: Layout;
  lines: number;
  shown: Shown | null;
  onMove: (shown: Shown) => void;
  onOpen: (shown: Shown) => void;
  /** From one column to another. */
  onZoom: (from: number, to: number) => void;
  onZoomOut: () => void;
}

/** Lines down and columns to the right. */
const ARROWS: Record<string, readonly [number, number]> = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
};
const FAR = 10;

export function pressKey(event: KeyboardEvent, map: Keyed): void {
  const { heat, shown } = map;
  const column = shown?.column ?? heat.columns - 1;
  const arrow = ARROWS[event.key];
  if (arrow) map.onMove(moved(arrow, event.shiftKey ? FAR : 1, map));
  else if (event.key === "Enter" && shown) map.onOpen(shown);
  else if (event.key === "Escape" || event.key === "-") map.onZoomOut();
  else if (event.key === "+" || event.key === "=") {
    const reach = Math.max(1, Math.floor(heat.columns / 6));
    map.onZoom(column - reach, column + reach);
  } else return;
  event.preventDefault();
}

/** The next cell; if none is shown, the first line of the last column. */
function moved([down, right]: readonly [number, number], far: number, map: Keyed): Shown {
  const { heat, layout, shown } = map;
  const line = within(shown ? shown.line + down * far : 0, map.lines);
  const column = within(shown ? shown.column + right * far : heat.columns - 1, heat.columns);
  const x = ((column + 0.5) / heat.columns) * layout.width;
  return { line, column, x, y: (line + 0.5) * layout.lineHeight, isKey: true };
}

function within(place: number, count: number): number {
  return Math.min(count - 1, Math.max(0, place));
}
