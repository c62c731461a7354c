/** What a comparison says: where two runs part, and what is not alike. */

import type { Comparison, RunHome } from "../api";
import { link, useView } from "../navigation";
import { Card } from "../parts/basics";
import { formatSeries } from "../view";
import { plural, whole } from "../format";

export function Parting(props: { found: Comparison }) {
  const { found } = props;
  const { parting } = found;
  const isShared = hasShared(found);
  const view = useView();
  return (
    <section class={`cause ${parting ? "note" : isShared ? "good" : "neutral"}`} aria-label="First parting">
      <svg viewBox="0 0 24 24" aria-hidden="true" class="stroke">
        <path d={parting ? "M3 12h6c5 0 5-7 12-7M9 12c5 0 5 7 12 7" : "M3 9h18M3 15h18"} />
      </svg>
      <div>
        <h2>
          {parting
            ? `They part at step ${whole(parting.step)}`
            : isShared
              ? "They do not part"
              : "Nothing to compare: they share no recorded series"}
        </h2>
        {isShared && <p>{found.text.replace(/^They part at step [\d,]+: /, "")}</p>}
        <p>
          <small>
            {plural(found.num_steps, "step")} and {plural(found.num_targets, "target")} in common
          </small>
        </p>
      </div>
      <div class="cause-links">
        {parting && (
          <a class="button" {...link({ screen: "series", series: [formatSeries(parting)], runs: view.runs })}>
            See it in both
          </a>
        )}
      </div>
    </section>
  );
}

/** Whether anything could be compared. */
export function hasShared(found: Comparison): boolean {
  return found.num_steps > 0 && found.num_targets > 0;
}

export function Unlike(props: { found: Comparison; home: RunHome; other: string }) {
  const { settings, unmatched } = props.found;
  return (
    <Card title="What is not alike">
      {Object.keys(settings).length > 0 && (
        <div class="table-box">
          <table>
            <thead>
              <tr>
                <th>Setting</th>
                <th>{props.home.name}</th>
                <th>{shortName(props.other)}</th>
              </tr>
            </thead>
            <tbody>
              {Object.entries(settings).map(([name, { a, b }]) => (
                <tr key={name}>
                  <td class="code">{name}</td>
                  <td class="code">{a ?? "–"}</td>
                  <td class="code">{b ?? "–"}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {unmatched.length > 0 && hasShared(props.found) && (
        <p class="foot-note">
          Only one of them has: <span class="code">{unmatched.slice(0, 30).join(", ")}</span>
        </p>
      )}
    </Card>
  );
}

export function shortName(run: string): string {
  return run.split("/").pop() || run;
}
