/** The compare screen: where two runs diverge, the difference of each layer, and their curves. */

import { useMemo } from "preact/hooks";
import type { Curve, Maybe, Place, RunHome } from "../api";
import { Chart } from "../curves/chart";
import { HeatMap } from "../heat/map";
import { go, link, useView } from "../navigation";
import { Card, Choice, Empty, Name, Waiting } from "../parts/basics";
import { QuantityChoice, ScaleChoice, stepZoom } from "../parts/choices";
import { matches } from "../search";
import { useAnswer, useHeat } from "../server";
import type { Mark } from "../severity";
import { formatSeries, NONE } from "../view";
import { number, plural } from "../format";
import { hasShared, FirstDivergence, SetDifferently, shortName, Unlike } from "./comparison";
import { NoRow, startQuantity } from "./home";
import { useGroups } from "./series";

export function CompareScreen(props: { home: RunHome }) {
  const view = useView();
  const list = useAnswer("runs", {});
  const others = (list.value?.runs ?? []).filter((row) => row.run !== props.home.run);
  const other = view.runs[0] ?? "";
  return (
    <>
      <section class="controls-bar" aria-label="Which runs">
        <h1>{props.home.name}</h1>
        <span class="versus">with</span>
        <Choice
          label="Run to compare with"
          isHidden
          value={other}
          onChange={(run) => go({ runs: run ? [run, ...view.runs.slice(1).filter((each) => each !== run)] : [] })}
          options={[
            ["", others.length ? "choose a run" : "no other run"],
            ...others.map((row) => [row.run, row.name] as [string, string]),
          ]}
        />
        {view.runs.length > 1 && <small>and {plural(view.runs.length - 1, "more run")} in the curves</small>}
      </section>
      {other ? (
        <Both home={props.home} other={other} />
      ) : (
        <Card>
          <Empty title="Choose a run to compare with">
            Shows the first step and tensor at which two runs diverge, a heat map of their difference, and both runs'
            curves. You can also select two runs in the list and press Compare.
          </Empty>
        </Card>
      )}
    </>
  );
}

function Both(props: { home: RunHome; other: string }) {
  const { home, other } = props;
  const view = useView();
  const answer = useAnswer("compare", { a: home.run, b: other });
  const found = answer.value;
  const divergence = found?.divergence ?? null;
  return (
    <>
      {found && <SetDifferently found={found} home={home} other={other} />}
      {found ? <FirstDivergence found={found} /> : <Waiting answer={answer} what="comparison" />}
      {(!found || hasShared(found)) && (
        <>
          <Overlay home={home} divergence={divergence} />
          <DifferenceMap home={home} other={other} divergence={divergence} />
        </>
      )}
      {found && found.differences.length > 0 && (
        <Card
          title={
            <>
              Largest differences <small>medians of the last steps that both have</small>
            </>
          }
        >
          <div class="table-box" tabIndex={0} role="region" aria-label="Series with the largest differences">
            <table>
              <thead>
                <tr>
                  <th>Target</th>
                  <th>Quantity</th>
                  <th class="num">{home.name}</th>
                  <th class="num">{shortName(other)}</th>
                  <th class="num" title="Between the medians of the last steps that both have; largest first">
                    Difference
                  </th>
                </tr>
              </thead>
              <tbody>
                {[...found.differences].sort(bySize).map((each) => (
                  <tr key={formatSeries(each)}>
                    <td>
                      <a {...link({ screen: "series", series: [formatSeries(each)], runs: view.runs })}>
                        <Name>{each.target}</Name>
                      </a>
                    </td>
                    <td>
                      {each.quantity.replaceAll("_", " ")} <small>{each.statistic}</small>
                    </td>
                    <td class={`num ${each.a === null ? "is-bad" : ""}`}>
                      {each.a === null ? "NaN or Inf" : number(each.a)}
                    </td>
                    <td class={`num ${each.b === null ? "is-bad" : ""}`}>
                      {each.b === null ? "NaN or Inf" : number(each.b)}
                    </td>
                    <td class="num">{apart(each.size)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        </Card>
      )}
      {found && found.unmatched.length > 0 && hasShared(found) && <Unlike found={found} />}
    </>
  );
}

function bySize(a: { size: Maybe }, b: { size: Maybe }): number {
  return (b.size ?? Infinity) - (a.size ?? Infinity);
}

/** A difference of logarithms as a person says it: per cent, or how many times. */
function apart(size: Maybe): string {
  if (size === null || size >= 20) return "far";
  const share = Math.expm1(size);
  return share < 1 ? `${number(100 * share, 2)}\u2009%` : `${number(share + 1, 3)} times`;
}

function Overlay(props: { home: RunHome; divergence: Place | null }) {
  const { home, divergence } = props;
  const view = useView();
  const wished = view.series.filter((each) => each !== NONE);
  const series = wished.length
    ? wished
    : [...new Set([...lossOf(home), ...(divergence ? [formatSeries(divergence)] : [])])];
  const query = { run: [home.run, ...view.runs], series, points: 1000 };
  const answer = useAnswer("series", series.length ? query : null);
  const groups = useGroups(answer.value?.curves ?? NO_CURVES, true);
  const marks = useDivergenceMark(divergence);
  if (answer.error && !answer.value)
    return (
      <Card>
        <Waiting answer={answer} what="curve" />
      </Card>
    );
  return (
    <div class="charts">
      {groups.map(({ title, lines }) => (
        <Chart
          key={title}
          title={title === "loss" ? title : `${title} · ${lines[0]!.curve.target}`}
          lines={lines}
          drawing={{ isLog: view.log, smooth: view.smooth, x: "step", starts: [] }}
          first={view.first}
          last={view.last}
          incidents={marks}
          height={230}
          onZoom={stepZoom(null)}
        />
      ))}
    </div>
  );
}

const NO_CURVES: Curve[] = [];

/** The series of the loss, whatever its name. */
function lossOf(home: RunHome): string[] {
  const loss = home.vital.find((vital) => vital.name === "loss");
  return loss ? [`scalar|${loss.target}|value`] : [];
}

/** The divergence, drawn like an incident. */
function useDivergenceMark(divergence: Place | null): Mark[] {
  return useMemo(
    () =>
      divergence
        ? [
            {
              step: divergence.step,
              severity: "warn",
              place: divergence.target,
              title: "the runs diverge here",
              targets: [],
              series: formatSeries(divergence),
            },
          ]
        : [],
    [divergence],
  );
}

function DifferenceMap(props: { home: RunHome; other: string; divergence: Place | null }) {
  const { home, other, divergence } = props;
  const view = useView();
  const known = home.quantities.filter((each) => each.name !== "scalar");
  const quantity =
    known.find((each) => each.name === (view.quantity || divergence?.quantity)) ?? startQuantity(home, view);
  const statistic =
    quantity && (quantity.statistics.includes(view.statistic) ? view.statistic : quantity.default_statistic);
  const answer = useHeat(
    "compare/heat",
    quantity
      ? { a: home.run, b: other, quantity: quantity.name, statistic, first: view.first, last: view.last, columns: 1000 }
      : null,
  );
  const marks = useDivergenceMark(divergence);
  const heat = answer.value;
  if (!quantity) return null;
  const isRatio = heat?.head.difference !== "minus";
  return (
    <Card
      title="Difference by layer"
      class="heat-card"
      side={
        <>
          <QuantityChoice known={known} quantity={quantity} statistic={statistic!} />
          <ScaleChoice view={view} label="Scale of curves" />
        </>
      }
    >
      {!heat ? (
        <Waiting answer={answer} what="difference" />
      ) : heat.columns === 0 || heat.targets.length === 0 ? (
        <Empty title="Nothing in common">
          These runs share no target and step of this quantity. Choose another quantity.
        </Empty>
      ) : !heat.targets.some((target) => matches(target, view.only)) ? (
        <NoRow only={view.only} />
      ) : (
        <div class={answer.isLoading ? "is-stale" : ""}>
          <HeatMap
            heat={heat}
            wishes={{ only: view.only, closed: view.closed, colour: "value", kind: isRatio ? "ratio" : "signed" }}
            incidents={marks}
            isZoomed={view.first !== null || view.last !== null}
            label={`Difference of ${quantity.name} ${statistic}`}
            ends={{ low: `${shortName(other)} smaller`, high: `${shortName(other)} larger` }}
            middle="same"
            onOpen={(targets) =>
              go({
                screen: "series",
                series: targets
                  .slice(0, 4)
                  .map((target) => formatSeries({ quantity: quantity.name, target, statistic: statistic! })),
              })
            }
            onZoom={(first, last) => go({ first, last })}
            onZoomOut={() => go({ first: null, last: null })}
            onClosed={(closed) => go({ closed })}
            onOnly={(only) => go({ only })}
            onIncident={() => divergence && go({ screen: "series", series: [formatSeries(divergence)] })}
          />
        </div>
      )}
    </Card>
  );
}
