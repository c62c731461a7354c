/** Incidents on the heat map: a flag above the step, a ring on the row. */

import { mostUrgent, type Mark, type Severity } from "../severity";
import { plural, whole } from "../format";
import { parseSeries } from "../view";
import type { Heat } from "./folding";
import { placeOf, type Shape } from "./shape";

interface Flag {
  x: number;
  incidents: Mark[];
}

/** Flags that would cover each other become one. */
export function gatherFlags(incidents: readonly Mark[], heat: Heat, width: number): Flag[] {
  if (!heat.columns) return [];
  const low = heat.first[0]!;
  const high = heat.last[heat.columns - 1]!;
  const flags: Flag[] = [];
  for (const incident of [...incidents].sort((a, b) => a.step - b.step)) {
    if (incident.step < low || incident.step > high) continue;
    const x = (placeOf(heat.first, heat.last, incident.step) / heat.columns) * width;
    const near = flags[flags.length - 1];
    if (near && x - near.x < 14) near.incidents.push(incident);
    else flags.push({ x, incidents: [incident] });
  }
  return flags;
}

export function Flags(props: { flags: Flag[]; height: number; onOpen: (incident: Mark) => void }) {
  return (
    <div class="flags" style={{ height: "18px" }}>
      {props.flags.map(({ x, incidents }) => {
        const worst = mostUrgent(incidents)!;
        const more = incidents.length > 1 ? `, and ${plural(incidents.length - 1, "more")}` : "";
        return (
          <button
            key={incidents[0]!.step}
            type="button"
            class={`flag is-${worst.severity}`}
            style={{ left: `${x}px` }}
            title={`Step ${whole(worst.step)}: ${worst.title}${more}`}
            aria-label={`Step ${whole(worst.step)}: ${worst.title}${more}. Open in alerts`}
            onClick={() => props.onOpen(worst)}
          >
            <i class="flag-line" style={{ height: `${props.height}px` }} aria-hidden="true" />
            <svg viewBox="0 0 14 14" aria-hidden="true">
              <path d="M1 1h12L7 12z" />
            </svg>
            {incidents.length > 1 && <em>{incidents.length}</em>}
          </button>
        );
      })}
    </div>
  );
}

export interface Ring {
  line: number;
  /** In columns from the left. */
  place: number;
  severity: Severity;
}

/** Where incidents began: on their rows, under their flags. */
export function findRings(incidents: readonly Mark[], heat: Heat, shape: Shape): Ring[] {
  const lineOf = new Map<string, number>();
  shape.outline.lines.forEach((line, index) => {
    for (let row = line.from; row < line.to; row++) lineOf.set(heat.targets[shape.kept[row]!]!, index);
  });
  const found = new Map<string, Ring>();
  for (const incident of incidents) {
    if (!heat.columns || incident.step < heat.first[0]! || incident.step > heat.last[heat.columns - 1]!) continue;
    // Its place, or else the first affected row on this map.
    const names = [
      incident.series ? parseSeries(incident.series).target : "",
      incident.place ?? "",
      ...incident.targets,
    ];
    const line = names.map((name) => lineOf.get(name)).find((each) => each !== undefined);
    if (line === undefined) continue;
    const place = placeOf(heat.first, heat.last, incident.step);
    found.set(`${line} ${place}`, { line, place, severity: incident.severity });
  }
  return [...found.values()];
}
