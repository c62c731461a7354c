/** The result of a comparison: where two runs diverge, and other differences. */

import { useState } from "preact/hooks";
import type { Comparison, RunHome } from "../api";
import { link, useView } from "../navigation";
import { Card } from "../parts/basics";
import { formatSeries } from "../view";
import { plural, whole } from "../format";

export function FirstDivergence(props: { found: Comparison }) {
  const { found } = props;
  const { divergence } = found;
  const isShared = hasShared(found);
  const view = useView();
  return (
    <section class={`cause ${divergence ? "is-told" : isShared ? "good" : "neutral"}`} aria-label="First divergence">
      <svg viewBox="0 0 24 24" aria-hidden="true" class="stroke">
        <path d={divergence ? "M3 12h6c5 0 5-7 12-7M9 12c5 0 5 7 12 7" : "M3 9h18M3 15h18"} />
      </svg>
      <div>
        <h2>
          {divergence
            ? `They diverge at step ${whole(divergence.step)}`
            : isShared
              ? "They do not diverge"
              : "Nothing to compare: they share no recorded series"}
        </h2>
        {isShared && <p>{found.text.replace(/^They diverge at step [\d,]+: /, "")}</p>}
        <p>
          <small>
            {plural(found.num_steps, "step")} and {plural(found.num_targets, "target")} in common
          </small>
        </p>
      </div>
      <div class="cause-links">
        {divergence && (
          <a class="button" {...link({ screen: "series", series: [formatSeries(divergence)], runs: view.runs })}>
            Show in both runs
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

const FEW = 12;

/** What was set differently, line by line: hyper-parameters, code, environment, packages, options. */
export function SetDifferently(props: { found: Comparison; home: RunHome; other: string }) {
  const [isOpen, setOpen] = useState(false);
  const settings = Object.entries(props.found.settings);
  if (!settings.length) return null;
  const shown = isOpen ? settings : settings.slice(0, FEW);
  return (
    <Card
      title={
        <>
          Set differently <small>{plural(settings.length, "setting")}</small>
        </>
      }
      side={
        settings.length > FEW && (
          <button type="button" onClick={() => setOpen(!isOpen)}>
            {isOpen ? "Show fewer" : "Show all"}
          </button>
        )
      }
    >
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
            {shown.map(([name, { a, b }]) => (
              <tr key={name}>
                <td class="code">{name}</td>
                <td class="code">{a ?? "–"}</td>
                <td class="code">{b ?? "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

export function Unlike(props: { found: Comparison }) {
  return (
    <Card title="Other differences">
      <p class="foot-note">
        Only in one run: <span class="code">{props.found.unmatched.slice(0, 30).join(", ")}</span>
      </p>
    </Card>
  );
}

export function shortName(run: string): string {
  return run.split("/").pop() || run;
}
