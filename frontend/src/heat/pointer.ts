/** The pointer on a heat map: it shows the cell below it, a click opens its series, a drag zooms. */

import type { RefObject } from "preact";
import { useRef, useState } from "preact/hooks";
import type { Heat } from "./folding";
import type { Layout } from "./layout";
import type { Cell } from "./tip";

/** The cell that is shown, and its place in pixels. */
export interface Shown extends Cell {
  x: number;
  y: number;
  /** Whether it was reached with the keyboard. */
  isKey?: boolean;
}

/** The range being dragged, in pixels. */
export interface Drag {
  from: number;
  to: number;
}

/** How far a pointer moves before it counts as a drag. */
const LEAST_DRAG = 5;
const DOUBLE_CLICK_MS = 260;

export interface PointerProps {
  heat: Heat;
  layout: Layout;
  surface: RefObject<HTMLDivElement | null>;
  shown: Shown | null;
  isZoomed: boolean;
  onShow: (shown: Shown | null) => void;
  onOpen: (cell: Cell) => void;
  /** From one column to another, in either order. */
  onZoom: (from: number, to: number) => void;
  onZoomOut: () => void;
}

export function usePointer(props: PointerProps) {
  const { heat, layout, surface, shown, onShow } = props;
  const [drag, setDrag] = useState<Drag | null>(null);
  const start = useRef<{ x: number; column: number } | null>(null);
  // In a zoomed map a double click zooms out: wait for it.
  const waiting = useRef(0);

  const cellAt = (event: PointerEvent): Shown => {
    const box = surface.current!.getBoundingClientRect();
    const x = Math.min(layout.width - 0.01, Math.max(0, event.clientX - box.left));
    const y = Math.min(layout.height - 0.01, Math.max(0, event.clientY - box.top));
    return { x, y, line: Math.floor(y / layout.lineHeight), column: Math.floor((x / layout.width) * heat.columns) };
  };
  const click = (cell: Cell) => {
    window.clearTimeout(waiting.current);
    if (props.isZoomed) waiting.current = window.setTimeout(() => props.onOpen(cell), DOUBLE_CLICK_MS);
    else props.onOpen(cell);
  };

  const handlers = {
    onPointerDown: (event: PointerEvent) => {
      if (event.button !== 0) return;
      start.current = cellAt(event);
      if (event.pointerType === "mouse") surface.current!.setPointerCapture(event.pointerId);
    },
    onPointerMove: (event: PointerEvent) => {
      const cell = cellAt(event);
      onShow(cell);
      const from = start.current;
      if (from && event.pointerType === "mouse" && Math.abs(cell.x - from.x) > LEAST_DRAG)
        setDrag({ from: from.x, to: cell.x });
    },
    onPointerUp: (event: PointerEvent) => {
      const cell = cellAt(event);
      const from = start.current;
      start.current = null;
      setDrag(null);
      if (!from) return;
      // The first touch of a cell shows it, the second one opens it.
      const isShown = shown?.line === cell.line && shown.column === cell.column;
      if (drag) props.onZoom(from.column, cell.column);
      else if (event.pointerType === "mouse" || isShown) click(cell);
      else onShow(cell);
    },
    // A touch that becomes a scroll has no end event; the next mouse move must not continue it as a drag.
    onPointerCancel: () => {
      start.current = null;
      setDrag(null);
    },
    onPointerLeave: (event: PointerEvent) => {
      if (event.pointerType === "mouse" && !drag) onShow(null);
    },
    onDblClick: () => {
      window.clearTimeout(waiting.current);
      props.onZoomOut();
    },
  };
  return { drag, handlers };
}
