/** The home screen of a run: progress, state, root cause, and the whole model over all steps. */

import { useMemo, useRef } from "preact/hooks";
import type { Incident, Quantity, RunHome } from "../api";
import { appendColumns, type Heat } from "../heat/folding";
import { HeatMap } from "../heat/map";
import { HeatTable } from "../heat/table";
import { useGrowing, useWanted } from "../live";
import { go, link, useView } from "../navigation";
import { Card, Choice, Empty, Found, Meter, Pill, Search, Segments, Spark, Waiting } from "../parts/basics";
import { HomeTour } from "../parts/tour";
import { GalleryLink } from "../parts/gallery-link";
import { RankNotes } from "../parts/rank-notes";
import { TimeSplit } from "../parts/time-split";
import { QuantityChoice } from "../parts/choices";
import { SeverityIcon } from "../parts/severity-icon";
import { matches, useTyped } from "../search";
import { isReport, useHeat } from "../server";
import { alertsText, inOrder, mostUrgent, type Mark } from "../severity";
import { formatSeries, parseSeries, type View } from "../view";
import { ago, duration, measured, moment, number, percent, plural, scalarTitle, stepsDone, whole } from "../format";

export function HomeScreen(props: { home: RunHome }) {
  const { home } = props;
  const worst = mostUrgent(home.incidents);
  return (
    <>
      <HomeTour command={home.command} parts={`${worst?.id} ${home.vital.length > 0}`} />
      <RunHead home={home} />
      {worst && <Cause incident={worst} all={home.incidents} />}
      <RankNotes home={home} told={worst?.rule} />
      <Vitals home={home} />
      {home.time && <TimeSplit verdict={home.time} throughput={home.throughput} />}
      <HeatCard home={home} />
    </>
  );
}

export function RunHead(props: { home: RunHome }) {
  const { home } = props;
  const isOpen = home.state === "running" || home.state === "stalled";
  return (
    <section class="run-head" aria-label="Progress">
      <h1>{home.name}</h1>
      <Pill state={home.state} />
      <div class="run-facts">
        <b>{stepsDone(home.step, home.total_steps)}</b>
        {isOpen && home.eta_seconds !== null && (
          <span>
            <b>{duration(home.eta_seconds)}</b> left
          </span>
        )}
        {home.steps_per_second !== null && (
          <span>
            <b title="Steps over time, without the pauses between sessions">{number(home.steps_per_second, 3)}</b>{" "}
            steps/s
          </span>
        )}
        <span title={moment(home.started)}>
          {isOpen
            ? `started ${ago(home.started, Date.now() / 1000)}`
            : home.started && home.ended
              ? `took ${duration(home.ended - home.started)}, ended ${ago(home.ended, Date.now() / 1000)}`
              : `started ${moment(home.started)}`}
        </span>
        {home.world_size > 1 && <a {...link({ screen: "ranks" })}>{plural(home.world_size, "rank")}</a>}
        {home.parts_off > 0 && (
          <a class="amber-text" {...link({ screen: "settings" })}>
            {plural(home.parts_off, "part")} off
          </a>
        )}
        {home.dropped_steps > 0 && <span class="amber-text">{plural(home.dropped_steps, "step")} dropped</span>}
      </div>
      {home.error && (
        <code class="red-text">
          {home.failed_rank !== null && `rank ${home.failed_rank}: `}
          {home.error}
        </code>
      )}
      {home.progress !== null && (
        <div class="run-progress">
          <Meter share={home.progress} label={`${percent(home.progress)} of all steps`} />
        </div>
      )}
    </section>
  );
}

export function Cause(props: { incident: Incident; all: readonly Incident[] }) {
  const { incident, all } = props;
  const series = incident.series;
  return (
    <section class={`cause is-${incident.severity}`} aria-label="Root cause">
      <SeverityIcon severity={incident.severity} />
      <div>
        <h2>
          {incident.first_step < incident.step
            ? `Since step ${whole(incident.first_step)}, at step ${whole(incident.step)}: `
            : `Step ${whole(incident.step)}: `}
          {incident.title}
        </h2>
        {incident.cause && <p>Likely cause: {incident.cause}.</p>}
        {incident.next && <p>Next: {incident.next}</p>}
      </div>
      <div class="cause-links">
        {series && (
          <a class="button" {...link({ screen: "series", series: [series] })}>
            Show the series
          </a>
        )}
        <a class="button" {...link({ screen: "alerts" })}>
          {all.length > 1 ? `All: ${alertsText(all)}` : "Explain"}
        </a>
        <GalleryLink rule={incident.rule} class="button">
          About this fault
        </GalleryLink>
      </div>
    </section>
  );
}

function Vitals(props: { home: RunHome }) {
  if (!props.home.vital.length) return null;
  return (
    <section class="vitals" aria-label="Vital signs">
      {props.home.vital.map((vital) => (
        <a key={vital.name} class="vital" {...link({ screen: "series", series: [`scalar|${vital.target}|value`] })}>
          <span title={vital.target}>
            {scalarTitle(vital.name)}
            {vital.is_found && <Found />}
          </span>
          <b class={vital.value === null && vital.spark.length ? "is-bad" : ""}>
            {vital.value === null && vital.spark.length ? "NaN" : measured(vital.value, vital.unit)} <small>last</small>
          </b>
          <Spark values={vital.spark} label={`${vital.name} over the last steps`} />
        </a>
      ))}
    </section>
  );
}

/** The default quantity: the one of the first incident, else the most informative. */
export function startQuantity(home: RunHome, view: View): Quantity | undefined {
  const known = home.quantities.filter((quantity) => quantity.name !== "scalar");
  const named = known.find((quantity) => quantity.name === view.quantity);
  if (named) return named;
  const worst = mostUrgent(home.incidents.filter((incident) => incident.series));
  const troubled = worst?.series ? parseSeries(worst.series).quantity : "";
  for (const name of [troubled, "gradient", "activation", "weight"]) {
    const found = known.find((quantity) => quantity.name === name && quantity.num_targets > 1);
    if (found) return found;
  }
  return known[0];
}

export function rankOptions(home: RunHome): [string, string][] {
  const folds: [string, string][] = [
    ["all", "all, merged"],
    ["min", "smallest over ranks"],
    ["mean", "mean over ranks"],
    ["max", "largest over ranks"],
    ["spread", "spread over ranks"],
  ];
  return [...folds, ...home.ranks.map((rank) => [String(rank), `rank ${rank}`] as [string, string])];
}

const MOST_COLUMNS = 1000;
const MOST_ROWS = 800;

function HeatCard(props: { home: RunHome }) {
  const { home } = props;
  const view = useView();
  const isTable = view.table;
  const quantity = startQuantity(home, view);
  const statistic =
    quantity && (quantity.statistics.includes(view.statistic) ? view.statistic : quantity.default_statistic);
  // Neighbours share a row if there are very many; a search shows each match separately.
  const typed = useTyped(view.only);
  const search = (quantity?.num_targets ?? 0) > MOST_ROWS && !isReport() ? typed : "";
  const size = { rows: MOST_ROWS, columns: MOST_COLUMNS, ...(search ? { search } : {}) };
  const wishes = { quantity: quantity?.name, statistic, rank: view.rank };
  const query = quantity ? { run: home.run, ...wishes, first: view.first, last: view.last, ...size } : null;
  const answer = useHeat("heat", query);
  const isZoomed = view.first !== null || view.last !== null;
  const heat = useColumns(answer.value, JSON.stringify(wishes), !isZoomed);
  useWanted(quantity ? wishes : {});
  const known = useMemo(() => home.quantities.filter((each) => each.name !== "scalar"), [home.quantities]);
  if (!quantity)
    return (
      <Card title="Layers over steps">
        <Empty title="No tensors recorded in this run">
          Its numbers are under <a {...link({ screen: "series" })}>Series</a>. With{" "}
          <code>vario.watch(model, optimizer)</code> each layer gets a row here.
        </Empty>
      </Card>
    );
  return (
    <Card
      class="heat-card"
      label="Layers over steps"
      title={
        <>
          Layers over steps{" "}
          <small class="hide-small">
            {heat ? `${plural(quantity.num_targets, "target")}, largest value of each bucket` : ""}
          </small>
        </>
      }
      side={
        <>
          <QuantityChoice known={known} quantity={quantity} statistic={statistic!} />
          {(home.world_size ?? 1) > 1 && !isReport() && (
            <Choice label="Rank" value={view.rank} onChange={(rank) => go({ rank })} options={rankOptions(home)} />
          )}
          <Segments
            label="Colour by"
            value={view.colour}
            onChange={(colour) => go({ colour })}
            options={[
              ["value", "Value", "Colour shows the value, on a logarithmic scale"],
              ["change", "Vs usual", "Colour shows the value relative to the row's usual value"],
            ]}
          />
          <Search
            value={view.only}
            onInput={(only) => go({ only }, true)}
            placeholder="Filter rows  /"
            label="Filter rows by name"
          />
          <button type="button" aria-pressed={isTable} onClick={() => go({ table: !isTable })}>
            Table
          </button>
        </>
      }
    >
      {!heat ? (
        <Waiting answer={answer} what="heat map" />
      ) : search && heat.targets.length === 0 ? (
        <NoRow only={search} />
      ) : heat.targets.length === 0 || heat.columns === 0 ? (
        <Empty title={isZoomed ? "Nothing recorded in these steps" : "Nothing recorded yet"}>
          {isZoomed ? (
            <button type="button" class="link" onClick={() => go({ first: null, last: null })}>
              Show all steps
            </button>
          ) : (
            "Rows appear with the first watched step."
          )}
        </Empty>
      ) : !heat.targets.some((target) => matches(target, view.only)) ? (
        <NoRow only={view.only} />
      ) : isTable ? (
        <HeatTable heat={heat} only={view.only} onOpen={(target) => openSeries(heat, [target])} />
      ) : (
        <div class={answer.isLoading ? "is-stale" : ""}>
          <HeatMap
            heat={heat}
            wishes={{ only: view.only, closed: view.closed, colour: view.colour }}
            incidents={home.incidents}
            isZoomed={isZoomed}
            label={`${quantity.name} ${statistic}`}
            onOpen={(targets) => openSeries(heat, targets)}
            onZoom={(first, last) => go({ first, last })}
            onZoomOut={() => go({ first: null, last: null })}
            onClosed={(closed) => go({ closed })}
            onOnly={(only) => go({ only })}
            onIncident={(incident) =>
              go({ screen: "alerts", incident: inOrder<Mark>(home.incidents).indexOf(incident) })
            }
          />
        </div>
      )}
    </Card>
  );
}

/** No search results. */
export function NoRow(props: { only: string }) {
  return (
    <Empty title={`No rows match '${props.only}'`}>
      <button type="button" class="link" onClick={() => go({ only: "" })}>
        Show all rows
      </button>
    </Empty>
  );
}

const MOST_CURVES = 12;

function openSeries(heat: Heat, targets: string[]): void {
  const { quantity, statistic } = heat.head;
  const series = targets.slice(0, MOST_CURVES).map((target) => formatSeries({ quantity, target, statistic }));
  go({ screen: "series", series, quantity, statistic });
}

/** The loaded heat map plus live columns. */
function useColumns(loaded: Heat | null, subject: string, isWhole: boolean): Heat | null {
  const names = useRef<string[]>([]);
  return useGrowing(
    loaded,
    "heat",
    subject,
    (added) => ({ added, names: (names.current = added.order ?? [...names.current, ...added.targets]) }),
    (heat, news) => (isWhole ? appendColumns(heat, news.added, news.names, MOST_COLUMNS * 1.5) : heat),
  );
}
