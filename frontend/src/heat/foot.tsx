/** The footer of a heat map: legend, size, and buttons to fold and zoom. */

import { useMemo } from "preact/hooks";
import type { Rgb } from "../colors";
import { plural } from "../format";
import { NOT_FINITE, type Heat } from "./folding";
import { Legend } from "./legend";
import type { Shape } from "./shape";
import { ALL_OPEN } from "./tree";

export interface FootProps {
  heat: Heat;
  shape: Shape;
  scale: readonly Rgb[];
  closed: readonly string[];
  isZoomed: boolean;
  ends?: { low: string; high: string };
  middle?: string;
  onClosed: (closed: string[]) => void;
  onZoomOut: () => void;
}

export function Foot(props: FootProps) {
  const { shape } = props;
  const hasBad = useMemo(() => shape.plain.flags.some((flag) => flag & NOT_FINITE), [shape]);
  const isAllOpen = props.closed.includes(ALL_OPEN);
  return (
    <div class="heat-foot">
      <Legend
        range={shape.range}
        scale={props.scale}
        hasBad={hasBad}
        low={props.ends?.low}
        high={props.ends?.high}
        middle={props.middle}
      />
      <Note heat={props.heat} shape={shape} />
      {shape.start.size > 0 && (
        <button
          type="button"
          onClick={() => props.onClosed(isAllOpen ? [] : [ALL_OPEN])}
          title={`${plural(shape.kept.length, "row")}: modules start folded in large models`}
        >
          {isAllOpen ? "Fold modules" : "Unfold all modules"}
        </button>
      )}
      {props.isZoomed && (
        <button type="button" onClick={props.onZoomOut}>
          Zoom out
        </button>
      )}
    </div>
  );
}

/** How much is shown. */
function Note(props: { heat: Heat; shape: Shape }) {
  const { heat, shape } = props;
  const shown = shape.kept.reduce((sum, row) => sum + heat.groups[row]!, 0);
  return (
    <span class="heat-note">
      {shown > shape.kept.length ? `${plural(shown, "target")} in ` : ""}
      {plural(shape.kept.length, "row")} × {plural(heat.columns, "column")}
      {heat.head.is_rollup ? " · downsampled, zoom in for every step" : ""}
    </span>
  );
}
