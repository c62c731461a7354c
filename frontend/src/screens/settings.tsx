/** How the run was watched, where it ran, and what of the watching is switched off and why. */

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
      <Card title="Parts switched off or incomplete">
        {found.parts_off.length === 0 ? (
          <p>None: every part of the monitor that was asked for works.</p>
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
          <p class="warning-text">
            {plural(found.dropped_steps, "step")} could not be written fast enough and are missing.
          </p>
        )}
      </Card>
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
          <p class="foot-note">A run that goes on from a checkpoint has a session for each start.</p>
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

function Fact(props: { name: string; value: unknown }) {
  return (
    <>
      <dt>{props.name}</dt>
      <dd class="code">{text(props.value)}</dd>
    </>
  );
}

/** A setting as it would be written: lists as words, empty things as what they mean. */
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
