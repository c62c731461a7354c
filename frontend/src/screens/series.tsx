/** Any number of curves, over steps or wall time, moving together. */

import { useMemo } from "preact/hooks";
import type { Curve, RunHome } from "../api";
import { lineColor } from "../colors";
import { Chart } from "../curves/chart";
import { Finder } from "../curves/finder";
import { LookControls, lookOf } from "../curves/look";
import { appendPoints, type Line } from "../curves/lines";
import { removal } from "../curves/curve-removal";
import { fractions } from "../curves/pan-zoom";
import { useGrowing, useWanted } from "../live";
import { go, useView } from "../navigation";
import { Card, Choice, Empty, Segments, Waiting } from "../parts/basics";
import { ScaleChoice, Smoothing, stepZoom } from "../parts/choices";
import { address, isReport, useAnswer } from "../server";
import { useDark } from "../theme";
import { NONE, type View } from "../view";
import { scalarTitle } from "../format";
import { rankOptions } from "./home";

const POINTS = 1200;

export function SeriesScreen(props: { home: RunHome }) {
  const { home } = props;
  const view = useView();
  const series = view.series.length ? view.series.filter((each) => each !== NONE) : startSeries(home);
  const isTime = view.x === "time";
  const query = {
    run: [home.run, ...view.runs],
    series,
    rank: view.rank,
    first: isTime ? null : view.first,
    last: isTime ? null : view.last,
    points: POINTS,
  };
  const answer = useAnswer("series", series.length ? query : null);
  const curves = usePoints(answer.value?.curves ?? null, view.last === null);
  useWanted({ series, rank: view.rank });
  const groups = useGroups(curves ?? [], view.runs.length > 0);
  const starts = isTime && view.runs.length > 0;
  // The other runs may be longer.
  const zoomSteps = stepZoom(view.runs.length ? null : home.step);
  const zoom = (first: number | null, last: number | null, isDragging = false) =>
    isTime ? go(fractions(first, last), isDragging) : zoomSteps(first, last, isDragging);
  const removed = (line: Line) => removal(line.curve, line.label, series, view.runs);
  return (
    <>
      <section class="controls-bar" aria-label="Curves">
        <div class="controls">
          {!isReport() && (
            <Finder home={home} shown={series} onAdd={(added) => go({ series: [...new Set([...series, added])] })} />
          )}
        </div>
        <div class="controls push">
          <ScaleChoice view={view} />
          <Segments<View["x"]>
            label="Axis"
            value={view.x}
            onChange={(x) => go({ x, first: null, last: null })}
            options={[
              ["step", "Step"],
              ["time", "Time"],
            ]}
          />
          <Smoothing view={view} />
          {(home.world_size ?? 1) > 1 && !isReport() && (
            <Choice
              label="Rank"
              value={view.rank}
              onChange={(rank) => go({ rank })}
              options={[...rankOptions(home), ["each", "each rank"]]}
            />
          )}
          {(view.first !== null || view.last !== null) && (
            <button type="button" class="button" onClick={() => zoom(null, null)}>
              Show all
            </button>
          )}
          {!isReport() && series.length > 0 && (
            <a class="button" href={address("series", { ...query, points: null, format: "csv" })} download>
              CSV
            </a>
          )}
        </div>
      </section>
      {series.length === 0 ? (
        <Card>
          <Empty title="No series selected">
            Find a target above, or click a row of the heat map on the home screen.
          </Empty>
        </Card>
      ) : !curves ? (
        <Waiting answer={answer} what="series" />
      ) : curves.every((curve) => curve.steps.length === 0) ? (
        <Card>
          <Empty title="Nothing recorded in these steps">
            <button type="button" class="link" onClick={() => zoom(null, null)}>
              Show all steps
            </button>
          </Empty>
        </Card>
      ) : (
        <div class={`charts ${groups.length === 1 ? "is-single" : ""}`}>
          {groups.map(({ title, lines }) => (
            <Chart
              key={title}
              title={title}
              lines={lines}
              controls={groups.length > 1 && <LookControls chart={title} view={view} />}
              drawing={{
                isLog: lookOf(view, title).log,
                smooth: lookOf(view, title).smooth,
                x: view.x,
                starts: starts ? lines.map((line) => line.curve.times[0] ?? 0) : [],
              }}
              first={view.first}
              last={view.last}
              incidents={home.incidents}
              height={groups.length === 1 ? Math.max(280, window.innerHeight - 330) : 240}
              onZoom={zoom}
              removeText={(line) => removed(line).text}
              onRemove={(line) => {
                const left = removed(line);
                go({ series: left.series, runs: left.runs });
              }}
            />
          ))}
        </div>
      )}
      {curves && series.length > 0 && (
        <p class="foot-note">
          {answer.value?.text} Drag to zoom, shift-drag to pan, double-click to show all steps. The shaded band is the
          range of values behind each point; pink marks at the bottom are NaN or Inf.
        </p>
      )}
    </>
  );
}

/** The default: the vital signs. */
function startSeries(home: RunHome): string[] {
  return home.vital.slice(0, 4).map((vital) => `scalar|${vital.target}|value`);
}

function usePoints(loaded: Curve[] | null, isToEnd: boolean): Curve[] | null {
  return useGrowing(
    loaded,
    "points",
    "",
    (news) => news,
    (curves, news) => (isToEnd ? curves.map((curve) => appendPoints(curve, news)) : curves),
  );
}

/** One chart for each statistic of a quantity; plain numbers have one each, since their scales differ. */
export function useGroups(curves: readonly Curve[], isManyRuns: boolean): { title: string; lines: Line[] }[] {
  const isDark = useDark();
  return useMemo(() => {
    const groups = new Map<string, Line[]>();
    for (const curve of curves) {
      const title =
        curve.quantity === "scalar"
          ? scalarTitle(curve.target)
          : `${curve.quantity.replaceAll("_", " ")} · ${curve.statistic}`;
      const lines = groups.get(title) ?? [];
      const parts = [
        isManyRuns ? curve.run.split("/").pop()! : "",
        curve.quantity === "scalar" && isManyRuns ? "" : curve.target,
        typeof curve.rank === "number" ? `rank ${curve.rank}` : curve.rank === "all" ? "" : curve.rank,
      ];
      lines.push({
        key: `${curve.run} ${curve.quantity} ${curve.target} ${curve.statistic} ${curve.rank}`,
        label: parts.filter(Boolean).join(" · "),
        color: lineColor(lines.length, isDark),
        curve,
      });
      groups.set(title, lines);
    }
    return [...groups].map(([title, lines]) => ({ title, lines }));
  }, [curves, isDark, isManyRuns]);
}
