/** The alerts screen: what rules found, when, where, why, and the consequences. */

import { useMemo, useState } from "preact/hooks";
import type { Alerts, ChainLink, Incident, RunHome } from "../api";
import { useKeys } from "../keys";
import { go, link, useView } from "../navigation";
import { Card, Empty, Waiting } from "../parts/basics";
import { nextRow } from "../parts/virtual";
import { GalleryLink } from "../parts/gallery-link";
import { SeverityIcon } from "../parts/severity-icon";
import { isReport, useAnswer } from "../server";
import { alertsText, inOrder, mostUrgent } from "../severity";
import { near, parseSeries } from "../view";
import { plural, whole } from "../format";
import { startQuantity } from "./home";

export function AlertsScreen(props: { home: RunHome }) {
  const { home } = props;
  const [isReplayed, setReplayed] = useState(false);
  const view = useView();
  const setCurrent = (incident: number) => go({ incident }, true);
  const answer = useAnswer("alerts", { run: home.run, replay: isReplayed ? 1 : null });
  const found = answer.value;
  const incidents = useMemo(() => inOrder(found?.incidents ?? []), [found]);
  const urgent = mostUrgent(incidents);
  const current = view.incident ?? (urgent ? incidents.indexOf(urgent) : 0);
  const shown = incidents[Math.min(Math.max(0, current), incidents.length - 1)];
  useKeys((key) => {
    const next = nextRow(key, current, incidents.length);
    if (next !== null) return (setCurrent(next), true);
    if (key === "Enter" && shown?.series) return (go({ screen: "series", series: [shown.series] }), true);
  });
  if (!found || (isReplayed && answer.isLoading && found.source !== "replay"))
    return (
      <>
        {isReplayed && answer.isLoading && (
          <p class="foot-note">Running the rules over every stored step. This takes a few seconds.</p>
        )}
        <Waiting answer={answer} what="alerts" />
      </>
    );
  const replay = !isReport() && !isReplayed && (
    <button type="button" class="button" onClick={() => setReplayed(true)}>
      Run the rules again
    </button>
  );
  if (!shown)
    return (
      <Card title="Alerts">
        <Empty title={found.source === "replay" ? "The rules found nothing" : "No alerts"}>
          {found.source === "replay"
            ? "They checked every stored step. "
            : `${found.remark} You can run the rules again over the stored steps. `}
        </Empty>
        <div class="center">{replay}</div>
      </Card>
    );
  return (
    <>
      {found.diagnosis && <Diagnosis text={found.diagnosis.paragraph} chain={found.diagnosis.chain} />}
      <Card title="Timeline" side={replay}>
        <Timeline
          incidents={incidents}
          last={home.step ?? 0}
          current={incidents.indexOf(shown)}
          onChoose={setCurrent}
        />
      </Card>
      <div class="two">
        <Card title={alertsText(incidents)} label="Incidents">
          <ol class="incidents">
            {incidents.map((incident, index) => (
              <li key={index}>
                <button
                  type="button"
                  class={`incident is-${incident.severity}`}
                  aria-current={incident === shown}
                  onClick={() => setCurrent(index)}
                >
                  <small>
                    <SeverityIcon severity={incident.severity} /> step {whole(incident.step)} · {incident.label}
                    {incident.rank !== null ? ` · rank ${incident.rank}` : ""}
                  </small>
                  <span>{incident.title}</span>
                </button>
              </li>
            ))}
          </ol>
        </Card>
        <Explanation home={home} incident={shown} isTold={found.diagnosis?.paragraph.includes(shown.title) ?? false} />
      </div>
      <Found alerts={found} />
    </>
  );
}

function Diagnosis(props: { text: string; chain: ChainLink[] }) {
  return (
    <Card title="Root cause" class="diagnosis">
      <p class="paragraph">{props.text}</p>
      {props.chain.length > 1 && (
        <ol class="chain" aria-label="Root cause and consequences">
          {props.chain.map((each, index) => (
            <li key={index} class={index === 0 ? "is-first" : ""}>
              <small>
                step {whole(each.step)}
                {each.rank !== null ? ` · rank ${each.rank}` : ""} · {each.label}
              </small>
              {each.series ? (
                <a {...link({ screen: "series", series: [each.series] })}>{each.target}</a>
              ) : (
                <span>{each.target ?? each.text}</span>
              )}
            </li>
          ))}
        </ol>
      )}
    </Card>
  );
}

function Timeline(props: {
  incidents: readonly Incident[];
  last: number;
  current: number;
  onChoose: (index: number) => void;
}) {
  const end = Math.max(props.last, ...props.incidents.map((incident) => incident.last_step ?? incident.step), 1);
  const lanes: number[] = [];
  const laneOf = props.incidents.map((incident) => {
    const from = incident.step / end;
    let lane = lanes.findIndex((until) => until <= from);
    if (lane < 0) lane = lanes.length;
    lanes[lane] = Math.max((incident.last_step ?? incident.step) / end, from + 0.015);
    return lane;
  });
  return (
    <div class="timeline" style={{ height: `${Math.min(8, Math.max(1, lanes.length)) * 16 + 26}px` }}>
      {props.incidents.map((incident, index) => (
        <button
          key={index}
          type="button"
          class={`span is-${incident.severity}`}
          aria-current={index === props.current}
          aria-label={`Step ${whole(incident.step)}: ${incident.title}`}
          title={`Step ${whole(incident.step)}: ${incident.title}`}
          style={{
            left: `${(incident.step / end) * 100}%`,
            width: `max(10px, ${(((incident.last_step ?? incident.step) - incident.step) / end) * 100}%)`,
            top: `${(laneOf[index]! % 8) * 16 + 2}px`,
          }}
          onClick={() => props.onChoose(index)}
        />
      ))}
      <span class="timeline-end">0</span>
      <span class="timeline-end is-last">step {whole(end)}</span>
    </div>
  );
}

function Explanation(props: { home: RunHome; incident: Incident; isTold: boolean }) {
  const { home, incident } = props;
  const view = useView();
  const series = incident.series ? parseSeries(incident.series) : null;
  const quantity = series && series.quantity !== "scalar" ? series.quantity : "";
  return (
    <Card
      title={
        <>
          <SeverityIcon severity={incident.severity} /> {incident.title}
        </>
      }
      class={`explanation is-${incident.severity}`}
    >
      <dl class="facts">
        <dt>Where</dt>
        <dd>
          <span class="code">{incident.place ?? "the whole run"}</span>
          {incident.rank !== null ? `, rank ${incident.rank}` : ""}, from step {whole(incident.step)}
          {incident.first_step < incident.step && `; the first alert was at step ${whole(incident.first_step)}`}
        </dd>
        <dt>Rule</dt>
        <dd>
          <GalleryLink rule={incident.rule}>{incident.label}</GalleryLink>, {incident.severity},{" "}
          {plural(incident.num_alerts, "alert")}
        </dd>
        <dt>Stage</dt>
        <dd>{incident.stage}</dd>
        {incident.cause && (
          <>
            <dt>Likely cause</dt>
            <dd>{incident.cause}</dd>
          </>
        )}
        {incident.next && (
          <>
            <dt>Next</dt>
            <dd>{incident.next}</dd>
          </>
        )}
        {incident.targets.length > 0 && (
          <>
            <dt>Affected</dt>
            <dd class="code touched">{incident.targets.join("  ")}</dd>
          </>
        )}
      </dl>
      {!props.isTold && <p class="paragraph">{incident.text}</p>}
      <div class="controls">
        {incident.series && (
          <a class="button is-main" {...link({ screen: "series", series: [incident.series] })}>
            Show the series
          </a>
        )}
        <a
          class="button"
          {...link({
            screen: "home",
            quantity,
            statistic: "",
            ...near(incident.step, startQuantity(home, { ...view, quantity })?.every ?? 1),
          })}
        >
          Show in the heat map
        </a>
        <GalleryLink rule={incident.rule} class="button">
          About this fault
        </GalleryLink>
      </div>
    </Card>
  );
}

function Found(props: { alerts: Alerts }) {
  const { alerts, num_alerts, remark } = props.alerts;
  const [isOpen, setOpen] = useState(false);
  return (
    <Card
      title={`All alerts: ${whole(num_alerts)}`}
      side={
        <>
          <small>{remark}</small>
          <button type="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
            {isOpen ? "Hide" : "Show"}
          </button>
        </>
      }
    >
      {isOpen && (
        <div class="table-box" tabIndex={0} role="region" aria-label="Alerts">
          <table>
            <thead>
              <tr>
                <th class="num">Step</th>
                <th>Rank</th>
                <th>Rule</th>
                <th>What</th>
              </tr>
            </thead>
            <tbody>
              {alerts.length < num_alerts && (
                <tr>
                  <td colSpan={4}>The first {whole(alerts.length)}:</td>
                </tr>
              )}
              {alerts.map((alert, index) => (
                <tr key={index}>
                  <td class="num">{whole(alert.step)}</td>
                  <td>{alert.rank ?? "–"}</td>
                  <td>
                    <GalleryLink rule={alert.rule}>{alert.label}</GalleryLink>
                  </td>
                  <td>
                    {alert.series ? (
                      <a {...link({ screen: "series", series: [alert.series] })}>{alert.text}</a>
                    ) : (
                      alert.text
                    )}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Card>
  );
}
