/** The layer x step heat map: targets in model order down, steps across. */

import { useMemo, useRef, useState } from "preact/hooks";
import { diverging, RISING } from "../colors";
import type { Mark } from "../severity";
import { useDark, useWidth } from "../theme";
import { plural, whole } from "../format";
import { StepAxis } from "./axis";
import { Cells } from "./canvas";
import type { Heat } from "./folding";
import { Foot } from "./foot";
import { Gutter } from "./gutter";
import { pressKey } from "./keyboard";
import { layOut } from "./layout";
import { findRings, Flags, gatherFlags } from "./marks";
import { Brush, HairLines, Rings } from "./overlay";
import { usePointer, type Shown } from "./pointer";
import { shape as makeShape, type Wishes } from "./shape";
import { describe, Tip, type Cell } from "./tip";
import { splitKind, withFolded, type Line } from "./tree";

export interface HeatMapProps {
  heat: Heat;
  wishes: Wishes;
  incidents: readonly Mark[];
  isZoomed: boolean;
  label: string;
  /** Show the series of these targets. */
  onOpen: (targets: string[]) => void;
  onZoom: (first: number, last: number) => void;
  onZoomOut: () => void;
  onClosed: (closed: string[]) => void;
  onOnly: (name: string) => void;
  onIncident: (incident: Mark) => void;
  ends?: { low: string; high: string };
  middle?: string;
}

export function HeatMap(props: HeatMapProps) {
  const { heat, wishes, incidents } = props;
  const isDark = useDark();
  const [measure, outerWidth] = useWidth();
  const [shown, setShown] = useState<Shown | null>(null);
  const surface = useRef<HTMLDivElement>(null);
  const scroller = useRef<HTMLDivElement>(null);

  const shape = useMemo(
    () => makeShape(heat, wishes),
    // oxlint-disable-next-line react/exhaustive-deps -- `wishes` is a new object at each render
    [heat, wishes.only, wishes.closed.join("\n"), wishes.colour, wishes.kind],
  );
  const layout = layOut(shape.outline, outerWidth, window.innerHeight);
  const { gutterWidth, width, height, lineHeight, seenHeight, isScrolled } = layout;
  const lines = shape.outline.lines.length;
  const scale = shape.range.kind === "log" ? RISING : diverging(isDark);
  const flags = useMemo(
    () => (outerWidth ? gatherFlags(incidents, heat, width) : []),
    [incidents, heat, width, outerWidth],
  );
  const rings = useMemo(() => findRings(incidents, heat, shape), [incidents, heat, shape]);
  const text = shown && describe(shown, heat, shape);

  const targetsOf = (line: Line) => shape.kept.slice(line.from, line.to).map((row) => heat.targets[row]!);
  const open = (cell: Cell) => {
    const line = shape.outline.lines[cell.line];
    if (line) props.onOpen(targetsOf(line));
  };
  const zoom = (from: number, to: number) => {
    const low = heat.first[Math.max(0, Math.min(from, to))]!;
    const high = heat.last[Math.min(heat.columns - 1, Math.max(from, to))]!;
    if (high > low) props.onZoom(low, high);
  };
  const scrollTo = (line: number) => {
    const box = scroller.current;
    if (!box || !isScrolled) return;
    const top = line * lineHeight;
    box.scrollTop = Math.min(top, Math.max(box.scrollTop, top + lineHeight - seenHeight));
  };
  const reach = { heat, layout, shown, onOpen: open, onZoom: zoom, onZoomOut: props.onZoomOut };
  const { drag, handlers } = usePointer({ ...reach, surface, isZoomed: props.isZoomed, onShow: setShown });
  const move = (next: Shown) => {
    scrollTo(next.line);
    setShown(next);
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
          onScroll={() => shown && !shown.isKey && setShown(null)}
        >
          <Gutter
            outline={shape.outline}
            lineHeight={lineHeight}
            width={gutterWidth}
            hovered={shown?.line ?? null}
            onFold={(name, isClosed) => props.onClosed(withFolded(shape.start, wishes.closed, name, isClosed))}
            onOnly={(name) => props.onOnly(splitKind(name).filter(Boolean).join(" "))}
            onOpen={(line) => props.onOpen(targetsOf(line))}
          />
          <div
            ref={surface}
            class={`heat-surface ${drag ? "is-dragging" : ""}`}
            style={{ width: `${width}px`, height: `${height}px` }}
            tabIndex={0}
            data-keys
            role="application"
            aria-roledescription="heat map"
            aria-label={`${props.label}: ${plural(lines, "row")}, steps ${whole(heat.first[0] ?? 0)} to ${whole(heat.last[heat.columns - 1] ?? 0)}. Use the arrow keys to move, Enter to open the series, plus to zoom in, Escape to zoom out.`}
            onKeyDown={(event) => pressKey(event, { ...reach, lines, onMove: move })}
            onBlur={() => setShown(null)}
            {...handlers}
          >
            <Cells shape={shape} layout={layout} scale={scale} isMeasured={outerWidth > 0} />
            <Rings rings={rings} heat={heat} layout={layout} />
            {shown && <HairLines cell={shown} heat={heat} layout={layout} />}
            {drag && <Brush drag={drag} />}
          </div>
        </div>
        {text && shown && !drag && (
          <div class="tip-place" style={{ left: `${gutterWidth}px`, width: `${width}px` }}>
            <Tip
              text={text}
              x={shown.x}
              y={shown.y - (scroller.current?.scrollTop ?? 0)}
              width={width}
              hint={shown.isKey ? "Press Enter to open the series" : "click: series · drag: zoom"}
            />
          </div>
        )}
      </div>
      <StepAxis heat={heat} layout={layout} />
      <Foot
        heat={heat}
        shape={shape}
        scale={scale}
        closed={wishes.closed}
        isZoomed={props.isZoomed}
        ends={props.ends}
        middle={props.middle}
        onClosed={props.onClosed}
        onZoomOut={props.onZoomOut}
      />
      <div class="only-read" role="status" aria-live="polite">
        {shown?.isKey && text ? `${text.name}, ${text.when}: ${text.value}. ${text.note}` : ""}
      </div>
    </div>
  );
}
