/** Panning and zooming a chart along its steps: by keys, drag and wheel. */

import type uPlot from "uplot";

export type Zoom = (first: number | null, last: number | null) => void;

/**
 * A range in whole steps, moved back to where the run has any; all of it where the range covers that. Of a run whose
 * last step nobody knows only the beginning is an end.
 */
export function withinRun(
  first: number | null,
  last: number | null,
  end: number | null,
): { first: number | null; last: number | null } {
  if (first === null || last === null || (first <= 0 && end !== null && last >= end))
    return { first: null, last: null };
  const span = Math.max(1, Math.round(last - first));
  const latest = end === null ? Infinity : Math.max(0, end - span);
  const low = Math.round(Math.max(0, Math.min(first, latest)));
  return { first: low, last: low + span };
}

const MOST_DIGITS = 12;

/** A range on an axis that has fractions, with as many digits as a picture of it can show. */
export function fractions(first: number | null, last: number | null): { first: number | null; last: number | null } {
  if (first === null || last === null) return { first: null, last: null };
  const digits = Math.min(MOST_DIGITS, Math.max(0, 3 - Math.floor(Math.log10(Math.max(last - first, 1e-12)))));
  return { first: Number(first.toFixed(digits)), last: Number(last.toFixed(digits)) };
}

/** Arrows pan, plus and minus zoom, Escape shows all; keys that follow quickly go on from the range asked for last. */
export function panZoomByKey(event: KeyboardEvent, [low, high]: readonly [number, number], zoom: Zoom): void {
  const span = high - low;
  if (event.key === "ArrowLeft") zoom(low - span / 5, high - span / 5);
  else if (event.key === "ArrowRight") zoom(low + span / 5, high + span / 5);
  else if (event.key === "+" || event.key === "=") zoom(low + span / 4, high - span / 4);
  else if (event.key === "-") zoom(low - span / 2, high + span / 2);
  else if (event.key === "Escape") zoom(null, null);
  else return;
  event.preventDefault();
}

/** Shift and drag, or a sideways wheel, moves the range; double click shows all. */
export function addPanning(u: uPlot, pan: Zoom): () => void {
  let start: { x: number; low: number; high: number } | null = null;
  const down = (event: MouseEvent) => {
    if (!event.shiftKey || event.button !== 0) return;
    event.stopImmediatePropagation();
    event.preventDefault();
    start = { x: event.clientX, low: u.scales.x!.min!, high: u.scales.x!.max! };
  };
  const move = (event: MouseEvent) => {
    if (!start) return;
    const shift = ((start.x - event.clientX) / u.over.clientWidth) * (start.high - start.low);
    pan(start.low + shift, start.high + shift);
  };
  const up = () => (start = null);
  const wheel = (event: WheelEvent) => {
    const isSideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
    if (!isSideways && !event.ctrlKey) return;
    event.preventDefault();
    const low = u.scales.x!.min!;
    const high = u.scales.x!.max!;
    const far = (event.deltaX || event.deltaY) / u.over.clientWidth;
    if (!event.ctrlKey) return pan(low + far * (high - low), high + far * (high - low));
    const at = u.posToVal(u.cursor.left ?? 0, "x");
    const zoom = Math.exp(event.deltaY / 200);
    pan(at - (at - low) * zoom, at + (high - at) * zoom);
  };
  const out = () => pan(null, null);
  u.over.addEventListener("mousedown", down, true);
  u.over.addEventListener("wheel", wheel, { passive: false });
  u.over.addEventListener("dblclick", out);
  window.addEventListener("mousemove", move);
  window.addEventListener("mouseup", up);
  return () => {
    window.removeEventListener("mousemove", move);
    window.removeEventListener("mouseup", up);
  };
}
