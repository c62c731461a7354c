/** Overlays on the cells: rings for incidents, crosshairs for the current cell, and the range being dragged. */

import type { Heat } from "./folding";
import type { Layout } from "./layout";
import type { Ring } from "./marks";
import type { Drag } from "./pointer";
import type { Cell } from "./tip";

export function Rings(props: { rings: readonly Ring[]; heat: Heat; layout: Layout }) {
  const { heat, layout } = props;
  return (
    <>
      {props.rings.map((ring) => (
        <i
          key={`${ring.line} ${ring.place}`}
          class={`ring is-${ring.severity}`}
          style={{
            left: `${(ring.place / heat.columns) * layout.width}px`,
            top: `${(ring.line + 0.5) * layout.lineHeight}px`,
          }}
        />
      ))}
    </>
  );
}

export function HairLines(props: { cell: Cell; heat: Heat; layout: Layout }) {
  const { cell, heat, layout } = props;
  return (
    <>
      <i
        class="hair hair-row"
        style={{ top: `${cell.line * layout.lineHeight}px`, height: `${Math.max(1, layout.lineHeight)}px` }}
      />
      <i
        class="hair hair-column"
        style={{
          left: `${(cell.column / heat.columns) * layout.width}px`,
          width: `${Math.max(1, layout.width / heat.columns)}px`,
        }}
      />
    </>
  );
}

export function Brush(props: { drag: Drag }) {
  const { from, to } = props.drag;
  return <i class="brush" style={{ left: `${Math.min(from, to)}px`, width: `${Math.abs(to - from)}px` }} />;
}
