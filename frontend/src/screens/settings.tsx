/** The settings screen: config, environment, and disabled parts with the reason. */

import type { ComponentChildren } from "preact";
import type { RunHome } from "../api";
import { Card, Waiting } from "../parts/basics";
import { useAnswer } from "../server";
import { moment, plural, whole } from "../format";

export function SettingsScreen(props: { home: RunHome }) {
  const answer = useAnswer("settings", { run: props.home.run });
  const found = answer.value;
  if (!found) return <Waiting answer={answer} what="settings" />;
  return (
    <>
      {Object.keys(found.params).length > 0 && (
        <Card title="Hyper-parameters">
          <dl class="facts is-wide">
            {Object.entries(found.params).map(([name, value]) => (
              <Fact key={name} name={name} value={value} from={found.param_sources[name]} />
            ))}
          </dl>
        </Card>
      )}
      <Origins run={props.home.run} />
      <Card title="Disabled or incomplete parts">
        {found.parts_off.length === 0 ? (
          <p>None: all parts of the monitor work.</p>
        ) : (
          <ul class="parts-off">
            {found.parts_off.map((part, index) => (
              <li key={index}>
                <b>{part.part}</b>
                <small>
                  {part.rank !== null ? `rank ${part.rank} · ` : ""}
                  {part.step !== null ? `since step ${part.step}` : ""}
                </small>
                <code>{part.error}</code>
              </li>
            ))}
          </ul>
        )}
        {found.dropped_steps > 0 && (
          <p class="amber-text">{plural(found.dropped_steps, "step")} could not be written and are missing.</p>
        )}
      </Card>
      {found.not_offered.length > 0 && (
        <Card title="Not offered for this framework">
          <dl class="facts is-wide">
            {found.not_offered.map((each) => (
              <Fact key={each.quantity} name={each.quantity} value={`needs ${each.missing}`} />
            ))}
          </dl>
        </Card>
      )}
      <div class="two is-even">
        <Card title="Environment">
          <dl class="facts">
            <Fact name="Folder" value={found.path} />
            <Fact name="Command" value={found.command} />
            <Fact name="Host" value={found.host} />
            <Fact name="Engine" value={found.engine} />
            <Fact name="Ranks" value={found.world_size} />
            {Object.keys(found.mesh ?? {}).length > 0 && <Fact name="Mesh" value={found.mesh} />}
            {Object.entries(found.versions).map(([name, version]) => (
              <Fact key={name} name={name} value={version} />
            ))}
          </dl>
        </Card>
        <Card title="Sessions">
          <table>
            <thead>
              <tr>
                <th>Started</th>
                <th class="num">From step</th>
              </tr>
            </thead>
            <tbody>
              {found.sessions.map((session, index) => (
                <tr key={index}>
                  <td>{moment(session.started)}</td>
                  <td class="num">{whole(session.first_step)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          <p class="foot-note">Resuming from a checkpoint adds a session.</p>
        </Card>
      </div>
      <Card title="Config">
        <dl class="facts is-wide">
          {Object.entries(found.config).map(([name, value]) => (
            <Fact key={name} name={name} value={value} />
          ))}
        </dl>
      </Card>
    </>
  );
}

/** Where the run comes from: code, what was printed, environment, packages. */
function Origins(props: { run: string }) {
  const found = useAnswer("origin", { run: props.run }).value;
  if (!found) return null;
  const { origin, diff, output } = found;
  const packages = Object.entries(origin.packages);
  const variables = Object.entries(origin.environment);
  const seeds = Object.entries(origin.seeds);
  return (
    <>
      {(origin.commit || origin.directory) && (
        <Card title="Code">
          <dl class="facts is-wide">
            {origin.commit && <Fact name="Commit" value={`${origin.commit.slice(0, 12)} ${origin.subject}`} />}
            {origin.branch && <Fact name="Branch" value={origin.branch} />}
            {origin.remote && <Fact name="Remote" value={origin.remote} />}
            {origin.commit && <Fact name="Changed" value={origin.changed} />}
            {origin.untracked.length > 0 && <Fact name="Untracked" value={origin.untracked} />}
            <Fact name="Directory" value={origin.directory} />
            <Fact name="Python" value={origin.executable} />
            {seeds.map(([name, seed]) => (
              <Fact key={name} name={`Seed of ${name}`} value={seed} />
            ))}
          </dl>
          {diff && (
            <More title={`Changes since the commit${origin.diff_is_cut ? ", cut" : ""}`}>
              <pre class="printed">
                {diff.split("\n").map((line, index) => (
                  <span key={index} class={changeClass(line)}>{`${line}\n`}</span>
                ))}
              </pre>
            </More>
          )}
          {variables.length > 0 && (
            <More title={`Environment: ${plural(variables.length, "variable")}`}>
              <dl class="facts is-wide">
                {variables.map(([name, value]) => (
                  <Fact key={name} name={name} value={value} />
                ))}
              </dl>
            </More>
          )}
          {packages.length > 0 && (
            <More title={plural(packages.length, "package")}>
              <p class="code">{packages.map(([name, version]) => `${name} ${version}`).join(", ")}</p>
            </More>
          )}
        </Card>
      )}
      {output && (
        <Card title="Output">
          <pre class="printed">{output}</pre>
        </Card>
      )}
    </>
  );
}

function More(props: { title: string; children: ComponentChildren }) {
  return (
    <details class="more">
      <summary>{props.title}</summary>
      {props.children}
    </details>
  );
}

function changeClass(line: string): string {
  if (line.startsWith("+") && !line.startsWith("+++")) return "is-added";
  return line.startsWith("-") && !line.startsWith("---") ? "is-removed" : "";
}

function Fact(props: { name: string; value: unknown; from?: string }) {
  return (
    <>
      <dt>{props.name}</dt>
      <dd class="code">
        {text(props.value)} {props.from && <small>{props.from}</small>}
      </dd>
    </>
  );
}

/** Format a setting: lists as words, empty values as their meaning. */
function text(value: unknown): string {
  if (value === null || value === undefined || value === "") return "–";
  if (Array.isArray(value)) return value.length ? value.map(text).join(", ") : "none";
  if (typeof value === "object") {
    const entries = Object.entries(value);
    if (!entries.length) return "none";
    if (entries.every(([, each]) => each !== null && typeof each === "object" && Object.keys(each).length === 0))
      return entries.map(([name]) => name).join(", ");
    return entries.map(([name, each]) => `${name}: ${text(each)}`).join(", ");
  }
  return typeof value === "string" ? value : JSON.stringify(value);
}
