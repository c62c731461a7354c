/** The ranks screen: state and any number of each rank, which are slow, which differ. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { Curve, RankState, RunHome, SlowRank } from "../api";
import { lineColor } from "../colors";
import { Chart } from "../curves/chart";
import type { Line } from "../curves/lines";
import { go, link, useView } from "../navigation";
import { Card, Choice, Empty, Pill, Search, Spark, Waiting } from "../parts/basics";
import { ScaleChoice, stepZoom } from "../parts/choices";
import { Desynced, Straggler } from "../parts/rank-notes";
import { RankTimesCard } from "../parts/rank-times";
import { useAnswer } from "../server";
import { useDark } from "../theme";
import { formatSeries, parseSeries } from "../view";
import { duration, number, plural, scalarTitle, whole } from "../format";

export function RanksScreen(props: { home: RunHome }) {
  const { home } = props;
  const view = useView();
  const isDark = useDark();
  const [by, setBy] = useState("step_seconds");
  const wished = parseSeries(view.series[0] || `scalar|${by}|value`);
  const quantity = home.quantities.find((each) => each.name === wished.quantity);
  const names = useAnswer(
    "targets",
    quantity ? { run: home.run, quantity: quantity.name, search: view.only, limit: 200 } : null,
  );
  // A newly chosen quantity starts with its first target.
  const chosen = {
    ...wished,
    target: wished.target || (names.of.includes(`quantity=${wished.quantity}&`) ? (names.value?.targets[0] ?? "") : ""),
  };
  const answer = useAnswer("ranks", chosen.target ? { run: home.run, ...chosen } : null);
  const found = answer.value;
  // Ranks wait for each other, so the step time shows nothing: start with a number that shows which is slow.
  const slowest = found?.verdict?.slow[0];
  const shown = slowest?.quantity === "scalar" ? slowest.target : "step_seconds";
  useEffect(() => setBy(shown), [shown]);
  const warm = chosen.target.endsWith("_seconds") ? (found?.curves[0]?.steps[1] ?? null) : null;
  const lines = useMemo(() => toLines(found?.curves ?? [], home.run, isDark), [found, home.run, isDark]);
  const choose = (changes: Partial<typeof chosen>) => go({ series: [formatSeries({ ...chosen, ...changes })] });
  const options = [...new Set([chosen.target, ...(names.value?.targets ?? [])])];
  if (!chosen.target && (!quantity || names.value?.targets.length === 0))
    return (
      <Card>
        <Empty title="Not recorded on any rank">
          <a {...link({ series: [], only: "" })}>Show step times</a>
        </Empty>
      </Card>
    );
  if (!found) return <Waiting answer={chosen.target ? answer : names} what="ranks" />;
  return (
    <>
      {slowest && (
        <Straggler verdict={found.verdict!} ranks={found.ranks}>
          <button type="button" class="button" onClick={() => choose(curveOf(slowest))}>
            Show it
          </button>
        </Straggler>
      )}
      {found.desync && <Desynced desync={found.desync} />}
      {found.verdict && <RankTimesCard verdict={found.verdict} />}
      <Card
        title="One curve per rank"
        side={
          <>
            <Choice
              label="Quantity"
              value={chosen.quantity}
              onChange={(name) => go({ series: [firstOf(home, name)], only: "" })}
              options={home.quantities.map((each) => [each.name, each.name.replaceAll("_", " ")] as const)}
            />
            <Choice
              label="Target"
              value={chosen.target}
              onChange={(target) => choose({ target })}
              options={options.map((name) => [name, name] as const)}
            />
            {(quantity?.statistics.length ?? 0) > 1 && (
              <Choice
                label="Statistic"
                value={chosen.statistic || quantity!.default_statistic}
                onChange={(statistic) => choose({ statistic })}
                options={quantity!.statistics.map((name) => [name, name] as const)}
              />
            )}
            {(names.value?.total ?? 0) > 200 && (
              <Search
                value={view.only}
                onInput={(only) => go({ only }, true)}
                placeholder="Find a target  /"
                label="Find a target"
              />
            )}
            <ScaleChoice view={view} />
          </>
        }
      >
        {lines.length ? (
          <Chart
            title={
              chosen.quantity === "scalar"
                ? scalarTitle(chosen.target)
                : `${chosen.quantity.replaceAll("_", " ")} ${chosen.target}${chosen.statistic ? ` · ${chosen.statistic}` : ""}`
            }
            lines={lines}
            drawing={{ isLog: view.log, smooth: 0, x: "step", starts: [] }}
            first={view.first ?? warm}
            last={view.last}
            incidents={home.incidents}
            height={300}
            onZoom={stepZoom(home.step)}
          />
        ) : (
          <Empty title="Not recorded on any rank">Choose another quantity or target.</Empty>
        )}
        {warm !== null && view.first === null && (
          <p class="foot-note">The first step is not shown: it is a warm-up step.</p>
        )}
      </Card>
      <Card title={plural(found.ranks.length, "rank")}>
        <div class="table-box">
          <table>
            <thead>
              <tr>
                <th class="num">Rank</th>
                <th>State</th>
                <th class="num">Last step</th>
                <th>Mesh</th>
                <th>Host</th>
                <th class="wide">{chosen.target.replaceAll("_", " ")}</th>
                <th class="num">Median</th>
              </tr>
            </thead>
            <tbody>
              {inOrderOfFailure(found.ranks).map((rank) => (
                <Row
                  key={rank.rank}
                  rank={rank}
                  curve={found.curves.find((curve) => curve.rank === rank.rank)}
                  isSlow={found.verdict?.slow.some((slow) => slow.rank === rank.rank) ?? false}
                  behind={Math.max(...found.ranks.map((each) => each.last_step ?? 0)) - (rank.last_step ?? 0)}
                />
              ))}
            </tbody>
          </table>
        </div>
        {found.ranks.length === 1 && (
          <p class="foot-note">
            This run has one rank. For several ranks, this screen shows which are slow and which differ.
          </p>
        )}
      </Card>
    </>
  );
}

/** The rank that took others down comes first; the rest keep their order. */
function inOrderOfFailure(ranks: readonly RankState[]): RankState[] {
  const first = ranks.find((rank) => rank.victim_of !== null)?.victim_of;
  return [...ranks.filter((rank) => rank.rank === first), ...ranks.filter((rank) => rank.rank !== first)];
}

function Row(props: { rank: RankState; curve: Omit<Curve, "run"> | undefined; isSlow: boolean; behind: number }) {
  const { rank, curve } = props;
  const values = (curve?.last ?? []).filter((value): value is number => value !== null).sort((a, b) => a - b);
  const middle = values[values.length >> 1];
  const coordinates = Object.entries(rank.coordinates ?? {});
  return (
    <tr>
      <td class="num">
        <a {...link({ screen: "home", rank: String(rank.rank), series: [] })} title="Heat map of this rank">
          {rank.rank}
        </a>
      </td>
      <td>
        <Pill state={rank.state} />{" "}
        {rank.victim_of !== null ? (
          <small title={rank.error ?? ""}>taken down by rank {rank.victim_of}</small>
        ) : (
          rank.error && <small class="red-text">{rank.error}</small>
        )}
      </td>
      <td class="num">
        {whole(rank.last_step)} {props.behind > 1 && <small class="amber-text">{whole(props.behind)} behind</small>}
      </td>
      <td>
        <small>{coordinates.map(([name, place]) => `${name} ${place}`).join(", ") || "–"}</small>
      </td>
      <td>{rank.host ?? "–"}</td>
      <td class="wide">
        {curve && (
          <Spark
            values={thin(curve.last.slice(curve.target.endsWith("_seconds") ? 1 : 0))}
            tone={props.isSlow ? "is-red" : ""}
            label={`rank ${rank.rank}`}
          />
        )}
      </td>
      <td class={`num ${props.isSlow ? "amber-text" : ""}`}>
        {middle === undefined ? "–" : curve?.target.endsWith("_seconds") ? duration(middle) : number(middle)}
      </td>
    </tr>
  );
}

/** The series that shows where a rank loses its time. */
function curveOf(slow: SlowRank): { quantity: string; target: string; statistic: string } {
  return { quantity: slow.quantity, target: slow.target, statistic: slow.quantity === "scalar" ? "value" : "max" };
}

function firstOf(home: RunHome, name: string): string {
  const quantity = home.quantities.find((each) => each.name === name);
  if (name === "scalar") return "scalar|step_seconds|value";
  return `${name}||${quantity?.default_statistic ?? ""}`;
}

function thin(values: readonly (number | null)[], most = 80): (number | null)[] {
  const every = Math.max(1, Math.ceil(values.length / most));
  return values.filter((_, index) => index % every === 0);
}

function toLines(curves: readonly Omit<Curve, "run">[], run: string, isDark: boolean): Line[] {
  return curves.map((curve, index) => ({
    key: String(curve.rank),
    label: `rank ${curve.rank}`,
    color: lineColor(index, isDark),
    curve: { ...curve, run },
  }));
}
