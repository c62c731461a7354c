/** The steps below a heat map. */

import { whole } from "../format";
import type { Heat } from "./folding";
import type { Layout } from "./layout";
import { ticks } from "./shape";

export function StepAxis(props: { heat: Heat; layout: Layout }) {
  const { heat } = props;
  const { gutterWidth, width } = props.layout;
  return (
    <div class="heat-axis" style={{ marginLeft: `${gutterWidth}px`, width: `${width}px` }} aria-hidden="true">
      {ticks(heat.first, heat.last, Math.max(2, Math.floor(width / 90))).map(([place, step]) => (
        <span key={step} style={{ left: `${(place / heat.columns) * 100}%` }}>
          {whole(step)}
        </span>
      ))}
    </div>
  );
}
