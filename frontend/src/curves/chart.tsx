/** Curves on a canvas: drag zooms, shift and drag pans, all charts of a page move together. */

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import type { Mark } from "../severity";
import { useDark, useWidth } from "../theme";
import { duration, number, plural, whole } from "../format";
import { ALL_LINES, drawnLines } from "./extremes";
import { align, newestAt, type Drawing, type Line } from "./lines";
import { addPanning, panZoomByKey } from "./pan-zoom";
import { savePicture } from "./picture";
import { drawMarks, makeOptions, type Bands } from "./plot";
import { CurveTable } from "./table";

export interface ChartProps {
  title: string;
  lines: readonly Line[];
  drawing: Drawing;
  /** The range that is shown, in units of the axis. */
  first: number | null;
  last: number | null;
  incidents: readonly Mark[];
  height?: number;
  onZoom: (first: number | null, last: number | null, isDragging?: boolean) => void;
  onRemove?: (line: Line) => void;
  /** What the button removes. */
  removeText?: (line: Line) => string;
  /** What else stands in its head. */
  controls?: ComponentChildren;
}

export function Chart(props: ChartProps) {
  const { incidents } = props;
  const isDark = useDark();
  const drawn = useMemo(
    () => drawnLines(props.lines, props.drawing, isDark),
    // oxlint-disable-next-line react/exhaustive-deps -- `drawing` is a new object at each render
    [props.lines, props.drawing.x, props.drawing.starts.join(), isDark],
  );
  const { lines } = drawn;
  const drawing = { ...props.drawing, starts: drawn.starts };
  const [measure, width] = useWidth();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [cursor, setCursor] = useState<number | null>(null);
  const [isTable, setTable] = useState(false);
  const aligned = useMemo(
    () => align(lines, drawing),
    // oxlint-disable-next-line react/exhaustive-deps -- `drawing` is a new object at each render
    [lines, drawing.isLog, drawing.smooth, drawing.x, drawing.starts.join()],
  );
  const latest = useRef(props);
  latest.current = props;
  const badPlaces = useRef(aligned.bad);
  badPlaces.current = aligned.bad;
  const back = useRef(aligned.value);
  back.current = aligned.value;

  const look = `${lines.map((line) => line.color + line.curve.is_whole).join()} ${drawing.isLog} ${drawing.x} ${drawing.smooth > 0} ${isDark} ${width} ${isTable}`;
  const [columns, bands] = useMemo(() => interleave(lines, aligned), [lines, aligned]);

  useEffect(() => {
    if (!box.current || !width || isTable) return;
    const options = makeOptions(width, props.height ?? 260, lines, drawing, bands, {
      range: (u) => shownRange(u.data[0], latest.current),
      value: (height) => back.current(height),
      zoom: (first, last) => latest.current.onZoom(first, last),
      cursor: setCursor,
      marks: (u) =>
        drawMarks(u, latest.current.drawing.x === "step" ? latest.current.incidents : [], badPlaces.current),
    });
    const made = new uPlot(options, columns, box.current);
    plot.current = made;
    const stop = addPanning(made, (first, last) => latest.current.onZoom(first, last, true));
    return () => {
      stop();
      made.destroy();
      plot.current = null;
    };
    // oxlint-disable-next-line react/exhaustive-deps -- new numbers need no new plot, see below
  }, [look, bands.length]);

  useEffect(() => {
    if (!plot.current) return;
    plot.current.setData(columns, false);
    const [low, high] = shownRange(columns[0], latest.current);
    plot.current.setScale("x", { min: low, max: high });
  }, [columns, props.first, props.last]);
  useEffect(() => plot.current?.redraw(false), [incidents]);

  const at = cursor !== null && cursor < aligned.x.length ? cursor : newest(aligned.x, props.last);
  return (
    <figure class="chart" aria-label={`${props.title}: ${plural(props.lines.length, "curve")}`}>
      <div ref={measure} />
      <figcaption class="chart-head">
        <h2>{props.title}</h2>
        <span class="chart-at">{at === null || aligned.x[at] === undefined ? "" : place(aligned.x[at], drawing)}</span>
        {props.controls}
        <button type="button" class="link" aria-pressed={isTable} onClick={() => setTable(!isTable)}>
          {isTable ? "Curve" : "Table"}
        </button>
        <button
          type="button"
          class="link"
          onClick={() => plot.current && savePicture(plot.current, props.title)}
          disabled={isTable}
        >
          PNG
        </button>
      </figcaption>
      {isTable ? (
        <CurveTable lines={lines} />
      ) : (
        <div
          ref={box}
          class="chart-box"
          tabIndex={0}
          role="application"
          aria-label={`${props.title}. Left and right to pan, plus and minus to zoom, Escape to show all steps.`}
          onKeyDown={(event) => panZoomByKey(event, shownRange(aligned.x, latest.current), props.onZoom)}
        />
      )}
      <ul class="chart-legend">
        {lines.map((line, index) => {
          const value = at === null ? null : newestAt(aligned.last[index] ?? [], at);
          return (
            <li key={line.key}>
              <i style={{ background: line.color }} aria-hidden="true" />
              <span class="code" title={line.label}>
                {line.label}
              </span>
              <b class={value === null ? "is-bad" : ""}>
                {value === undefined ? "" : value === null ? missing(line) : number(aligned.value(value))}
              </b>
              {props.onRemove && line.key !== ALL_LINES && (
                <button
                  type="button"
                  class="remove"
                  aria-label={props.removeText?.(line) ?? `Remove ${line.label}`}
                  title={props.removeText?.(line) ?? "Remove"}
                  onClick={() => props.onRemove!(line)}
                >
                  ×
                </button>
              )}
            </li>
          );
        })}
      </ul>
      {drawn.text && <p class="foot-note">{drawn.text}</p>}
    </figure>
  );
}

function missing(line: Line): string {
  return line.curve.bad.some(Boolean) ? "NaN" : "–";
}

function newest(x: readonly number[], last: number | null): number | null {
  if (!x.length) return null;
  if (last === null) return x.length - 1;
  const after = x.findIndex((each) => each > last);
  return after < 0 ? x.length - 1 : Math.max(0, after - 1);
}

function place(x: number, drawing: Drawing): string {
  if (drawing.x === "step")
    return drawing.along && drawing.along !== "step" ? `${drawing.along} ${number(x)}` : `step ${whole(x)}`;
  return drawing.along || drawing.starts.some(Boolean) ? duration(x) : new Date(x * 1000).toLocaleString();
}

/** uPlot's columns: x, the lines, then the edges of bands; and which columns make a band. */
function interleave(lines: readonly Line[], aligned: ReturnType<typeof align>): [uPlot.AlignedData, Bands] {
  const columns: unknown[] = [aligned.x, ...aligned.last];
  const bands: Bands = [];
  lines.forEach((line, index) => {
    const low = aligned.low[index];
    const high = aligned.high[index];
    if (low && high) bands.push({ low: columns.push(low) - 1, high: columns.push(high) - 1, color: line.color });
  });
  return [columns as uPlot.AlignedData, bands];
}

/** What is asked for, or all there is. It needs no plot: keys work before one is drawn. */
function shownRange(x: ArrayLike<number>, props: ChartProps): [number, number] {
  const low = props.first ?? x[0] ?? 0;
  const high = props.last ?? x[x.length - 1] ?? 1;
  // Very large neighbouring numbers may be equal as floats.
  const air = Math.max(0.5, Math.abs(low) * 1e-12);
  return high > low ? [low, high] : [low - air, low + air];
}
