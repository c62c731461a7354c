/** The layer x step heat map: targets in model order down, steps across. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { parting, RISING } from "../colors";
import type { Mark } from "../severity";
import { useDark, useWidth } from "../theme";
import { plural, whole } from "../words";
import { NOT_FINITE, type Heat } from "./folding";
import { Gutter } from "./gutter";
import { Legend } from "./legend";
import { findRings, Flags, gatherFlags } from "./marks";
import { paint } from "./paint";
import { shape as makeShape, ticks, type Wishes } from "./shape";
import { describe, Tip, type Cell } from "./tip";
import { ALL_OPEN, splitKind, withFolded, type Line } from "./tree";

export interface HeatMapProps {
  heat: Heat;
  wishes: Wishes;
  incidents: readonly Mark[];
  isZoomed: boolean;
  label: string;
  /** The row that is shown elsewhere, marked. */
  onOpen: (targets: string[]) => void;
  onZoom: (first: number, last: number) => void;
  onZoomOut: () => void;
  onClosed: (closed: string[]) => void;
  onOnly: (name: string) => void;
  onIncident: (incident: Mark) => void;
  ends?: { low: string; high: string };
  middle?: string;
}

const TALLEST_ROW = 18;
/** The lowest row that has its name beside it, and how many of them a map may have. */
const NAMED_ROW = 11;
const MOST_NAMED = 400;
const SCROLLBAR = 12;
const AXIS = 40;

export function HeatMap(props: HeatMapProps) {
  const { heat, wishes, incidents } = props;
  const isDark = useDark();
  const [measure, outerWidth] = useWidth();
  const [hover, setHover] = useState<(Cell & { x: number; y: number; isKey?: boolean }) | null>(null);
  const [drag, setDrag] = useState<{ from: number; to: number } | null>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const surface = useRef<HTMLDivElement>(null);
  const scroller = useRef<HTMLDivElement>(null);

  const shape = useMemo(
    () => makeShape(heat, wishes),
    // oxlint-disable-next-line react/exhaustive-deps -- `wishes` is a new object at each render
    [heat, wishes.only, wishes.closed.join("\n"), wishes.colour, wishes.kind],
  );
  const lines = shape.outline.lines.length;
  const tallest = Math.max(320, Math.min(620, window.innerHeight - 330));
  const lineHeight = rowHeight(lines, tallest);
  const isNamed = lineHeight >= 10 || shape.outline.lines.some((line) => line.folded);
  const gutterWidth = gutterFor(outerWidth, shape.outline.depth, isNamed);
  const height = Math.max(1, lines * lineHeight);
  // Who scrolls the rows wants to see the steps below them all the while.
  const seenHeight = height <= 1.5 * tallest ? height : tallest - AXIS;
  const isScrolled = seenHeight < height;
  const width = Math.max(40, outerWidth - gutterWidth - 1 - (isScrolled ? SCROLLBAR : 0));
  const scale = shape.range.kind === "log" ? RISING : parting(isDark);

  useEffect(() => {
    if (canvas.current && outerWidth)
      paint(canvas.current, shape.colored, {
        width,
        height,
        density: window.devicePixelRatio || 1,
        scale,
        range: shape.range,
      });
  }, [shape, width, height, scale, outerWidth]);

  const hasBad = useMemo(() => shape.plain.flags.some((flag) => flag & NOT_FINITE), [shape]);
  const flags = useMemo(
    () => (outerWidth ? gatherFlags(incidents, heat, width) : []),
    [incidents, heat, width, outerWidth],
  );
  const rings = useMemo(() => findRings(incidents, heat, shape), [incidents, heat, shape]);
  const shown = shape.kept.reduce((sum, row) => sum + heat.groups[row]!, 0);
  const text = hover && describe(hover, heat, shape);

  const cellAt = (event: PointerEvent | MouseEvent) => {
    const box = surface.current!.getBoundingClientRect();
    const x = Math.min(width - 0.01, Math.max(0, event.clientX - box.left));
    const y = Math.min(height - 0.01, Math.max(0, event.clientY - box.top));
    return { x, y, line: Math.floor(y / lineHeight), column: Math.floor((x / width) * heat.columns) };
  };
  const targetsOf = (line: Line) => shape.kept.slice(line.from, line.to).map((row) => heat.targets[row]!);
  const open = (cell: Cell) => {
    const line = shape.outline.lines[cell.line];
    if (line) props.onOpen(targetsOf(line));
  };
  const zoomTo = (from: number, to: number) => {
    const low = heat.first[Math.max(0, Math.min(from, to))]!;
    const high = heat.last[Math.min(heat.columns - 1, Math.max(from, to))]!;
    if (high > low) props.onZoom(low, high);
  };
  // In a zoomed map a second click means out: the first one waits for it.
  const waiting = useRef(0);
  const clicked = (cell: Cell) => {
    window.clearTimeout(waiting.current);
    if (props.isZoomed) waiting.current = window.setTimeout(() => open(cell), 260);
    else open(cell);
  };
  const zoomOut = () => {
    window.clearTimeout(waiting.current);
    props.onZoomOut();
  };
  const pointer = useRef<{ x: number; column: number; id: number } | null>(null);
  const fold = (name: string, isClosed: boolean) =>
    props.onClosed(withFolded(shape.start, wishes.closed, name, isClosed));
  const bringInSight = (line: number) => {
    const box = scroller.current;
    if (!box || !isScrolled) return;
    const top = line * lineHeight;
    box.scrollTop = Math.min(top, Math.max(box.scrollTop, top + lineHeight - seenHeight));
  };

  const pressed = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
    };
    const move = moves[event.key];
    const here = hover ?? { line: 0, column: heat.columns - 1, x: 0, y: 0 };
    if (move) {
      const far = event.shiftKey ? 10 : 1;
      const line = Math.min(lines - 1, Math.max(0, here.line + (hover ? move[0] * far : 0)));
      const column = Math.min(heat.columns - 1, Math.max(0, here.column + (hover ? move[1] * far : 0)));
      bringInSight(line);
      setHover({ line, column, x: ((column + 0.5) / heat.columns) * width, y: (line + 0.5) * lineHeight, isKey: true });
    } else if (event.key === "Enter" && hover) open(hover);
    else if (event.key === "Escape" || event.key === "-") props.onZoomOut();
    else if (event.key === "+" || event.key === "=") {
      const reach = Math.max(1, Math.floor(heat.columns / 6));
      zoomTo(here.column - reach, here.column + reach);
    } else return;
    event.preventDefault();
  };

  return (
    <div class="heat" ref={measure}>
      <div class="heat-above" style={{ marginLeft: `${gutterWidth}px` }}>
        <Flags flags={flags} height={seenHeight + 18} onOpen={props.onIncident} />
      </div>
      <div class="heat-body">
        <div
          ref={scroller}
          class={`heat-rows ${isScrolled ? "is-scrolled" : ""}`}
          style={isScrolled ? { height: `${seenHeight}px` } : undefined}
          onScroll={() => hover && !hover.isKey && setHover(null)}
        >
          <Gutter
            outline={shape.outline}
            lineHeight={lineHeight}
            width={gutterWidth}
            hovered={hover?.line ?? null}
            onFold={fold}
            onOnly={(name) => props.onOnly(splitKind(name).filter(Boolean).join(" "))}
            onOpen={(line) => props.onOpen(targetsOf(line))}
          />
          <div
            ref={surface}
            class={`heat-surface ${drag ? "is-dragging" : ""}`}
            style={{ width: `${width}px`, height: `${height}px` }}
            tabIndex={0}
            role="application"
            aria-roledescription="heat map"
            aria-label={`${props.label}: ${plural(lines, "row")}, steps ${whole(heat.first[0] ?? 0)} to ${whole(heat.last[heat.columns - 1] ?? 0)}. Arrow keys move, Enter opens the series, plus zooms in, Escape zooms out.`}
            onKeyDown={pressed}
            onBlur={() => setHover(null)}
            onPointerDown={(event) => {
              if (event.button !== 0) return;
              const cell = cellAt(event);
              pointer.current = { x: cell.x, column: cell.column, id: event.pointerId };
              if (event.pointerType === "mouse") surface.current!.setPointerCapture(event.pointerId);
            }}
            onPointerMove={(event) => {
              const cell = cellAt(event);
              setHover(cell);
              const start = pointer.current;
              if (start && event.pointerType === "mouse" && Math.abs(cell.x - start.x) > 5)
                setDrag({ from: start.x, to: cell.x });
            }}
            onPointerUp={(event) => {
              const cell = cellAt(event);
              const start = pointer.current;
              pointer.current = null;
              setDrag(null);
              if (!start) return;
              if (drag) zoomTo(start.column, cell.column);
              else if (
                event.pointerType === "mouse" ||
                (hover && hover.line === cell.line && hover.column === cell.column)
              )
                clicked(cell);
              else setHover(cell);
            }}
            onPointerLeave={(event) => event.pointerType === "mouse" && !drag && setHover(null)}
            onDblClick={zoomOut}
          >
            <canvas ref={canvas} style={{ width: `${width}px`, height: `${height}px` }} aria-hidden="true" />
            {rings.map((ring) => (
              <i
                key={`${ring.line} ${ring.place}`}
                class={`ring ${ring.severity}`}
                style={{
                  left: `${(ring.place / heat.columns) * width}px`,
                  top: `${(ring.line + 0.5) * lineHeight}px`,
                }}
              />
            ))}
            {hover && (
              <>
                <i
                  class="hair hair-row"
                  style={{ top: `${hover.line * lineHeight}px`, height: `${Math.max(1, lineHeight)}px` }}
                />
                <i
                  class="hair hair-column"
                  style={{
                    left: `${(hover.column / heat.columns) * width}px`,
                    width: `${Math.max(1, width / heat.columns)}px`,
                  }}
                />
              </>
            )}
            {drag && (
              <i
                class="brush"
                style={{ left: `${Math.min(drag.from, drag.to)}px`, width: `${Math.abs(drag.to - drag.from)}px` }}
              />
            )}
          </div>
        </div>
        {text && hover && !drag && (
          <div class="tip-place" style={{ left: `${gutterWidth}px`, width: `${width}px` }}>
            <Tip
              text={text}
              x={hover.x}
              y={hover.y - (scroller.current?.scrollTop ?? 0)}
              width={width}
              hint={hover.isKey ? "Enter opens the series" : "click: series · drag: zoom"}
            />
          </div>
        )}
      </div>
      <div class="heat-axis" style={{ marginLeft: `${gutterWidth}px`, width: `${width}px` }} aria-hidden="true">
        {ticks(heat.first, heat.last, Math.max(2, Math.floor(width / 90))).map(([place, step]) => (
          <span key={step} style={{ left: `${(place / heat.columns) * 100}%` }}>
            {whole(step)}
          </span>
        ))}
      </div>
      <div class="heat-foot">
        <Legend
          range={shape.range}
          scale={scale}
          hasBad={hasBad}
          low={props.ends?.low}
          high={props.ends?.high}
          middle={props.middle}
        />
        <span class="heat-note">
          {shown > shape.kept.length ? `${plural(shown, "target")} in ` : ""}
          {plural(shape.kept.length, "row")} × {plural(heat.columns, "column")}
          {heat.head.is_outline ? " · drawn from outlines, zoom in for every step" : ""}
        </span>
        {shape.start.size > 0 && (
          <button
            type="button"
            onClick={() => props.onClosed(wishes.closed.includes(ALL_OPEN) ? [] : [ALL_OPEN])}
            title={`${plural(shape.kept.length, "row")}: modules begin folded where there are very many`}
          >
            {wishes.closed.includes(ALL_OPEN) ? "Fold modules" : "Open all modules"}
          </button>
        )}
        {props.isZoomed && (
          <button type="button" onClick={props.onZoomOut}>
            Zoom out
          </button>
        )}
      </div>
      <div class="only-read" role="status" aria-live="polite">
        {hover?.isKey && text ? `${text.name}, ${text.when}: ${text.value}. ${text.note}` : ""}
      </div>
    </div>
  );
}

/** As tall as fits the window; names are worth some scrolling, but not many windows full. */
function rowHeight(lines: number, tallest: number): number {
  const fitted = Math.min(TALLEST_ROW, tallest / Math.max(1, lines));
  if (fitted < NAMED_ROW && lines <= MOST_NAMED) return NAMED_ROW;
  return fitted >= 4 ? Math.floor(fitted) : fitted;
}

/** Room for the blocks of modules, and for names where rows are tall enough to have them. */
function gutterFor(width: number, depth: number, isNamed: boolean): number {
  const blocks = Math.min(depth, 4) * 18;
  if (!isNamed) return Math.max(18, Math.min(blocks, width * 0.2)) + 6;
  if (width < 560) return Math.min(104, Math.round(width * 0.3));
  return Math.min(300, 130 + blocks);
}
