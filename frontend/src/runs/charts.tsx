/** Charts over runs: any logged number of the runs that are shown or selected. */

import { useMemo, useState } from "preact/hooks";
import type { OverlayChart, OverlayLine } from "../api";
import { lineColor } from "../colors";
import { Chart } from "../curves/chart";
import { LookControls, lookOf } from "../curves/look";
import type { Line } from "../curves/lines";
import { fractions } from "../curves/pan-zoom";
import { go, useView } from "../navigation";
import { Card, Choice, Empty, Search, Waiting } from "../parts/basics";
import { ScaleChoice, Smoothing } from "../parts/choices";
import { matches } from "../search";
import { useAnswer } from "../server";
import { useDark } from "../theme";
import { isOverSteps } from "../view";
import { arrangementOf, KeepCharts, PlaceControls, useStored } from "./arrangement";
import { toggled } from "./row";

const SHOWN = 8;

export function RunCharts(props: { runs: readonly string[] | null; isWritable: boolean }) {
  const view = useView();
  const { stored, isKnown, keep } = useStored();
  const known = useAnswer("columns", {});
  const names = useMemo(
    () => (known.value?.columns ?? []).filter((each) => each.source === "number").map((each) => each.key),
    [known.value],
  );
  const numbers = view.numbers.length ? view.numbers : usualNumbers(names);
  const answer = useAnswer(
    "overlay",
    numbers.length && isKnown
      ? {
          number: numbers,
          run: props.runs ?? [],
          where: view.where,
          group: view.by,
          along: view.along || "step",
          best: view.best ? "1" : "0",
        }
      : null,
  );
  const settings = (known.value?.columns ?? []).filter((each) => each.source === "params" && each.differs);
  const growing = names.filter((name) => /epoch|token|sample|consumed/i.test(name) && !/per_second/.test(name));
  if (!known.value) return <Waiting answer={known} what="columns" />;
  return (
    <>
      <section class="controls-bar" aria-label="Charts">
        <div class="controls">
          <NumberFinder names={names} shown={numbers} onTurn={(name) => go({ numbers: toggled(numbers, name) })} />
        </div>
        <div class="controls push">
          <Choice
            label="Group by"
            value={view.by}
            onChange={(by) => go({ by, closed: [] })}
            options={[["", "nothing"], ...settings.map((each) => [each.key, each.key] as const)]}
          />
          <Choice
            label="Against"
            value={view.along}
            onChange={(along) => go({ along, first: null, last: null })}
            options={[["", "step"], ["time", "time"], ...growing.map((name) => [name, name] as const)]}
          />
          <ScaleChoice view={view} />
          <button type="button" class="button" aria-pressed={view.best} onClick={() => go({ best: !view.best })}>
            Best so far
          </button>
          <Smoothing view={view} />
          {props.isWritable && numbers.length > 0 && (
            <KeepCharts now={arrangementOf(view, numbers)} stored={stored} onKept={keep} />
          )}
        </div>
      </section>
      {!numbers.length ? (
        <Card>
          <Empty title="No number selected">Find one above: “val” finds val_loss.</Empty>
        </Card>
      ) : !answer.value ? (
        <Waiting answer={answer} what="charts" />
      ) : (
        <div class={`charts ${answer.value.charts.length === 1 ? "is-single" : ""}`}>
          {answer.value.charts.map((chart) => (
            <RunChart key={chart.number} chart={chart} numbers={numbers} />
          ))}
        </div>
      )}
    </>
  );
}

function RunChart(props: { chart: OverlayChart; numbers: readonly string[] }) {
  const view = useView();
  const isDark = useDark();
  const { chart, numbers } = props;
  const isSingle = numbers.length === 1;
  const look = lookOf(view, chart.number);
  const isTime = view.along === "time";
  const lines = useMemo(
    () => chart.lines.map((line, at) => toLine(chart.number, line, lineColor(at, isDark))),
    [chart, isDark],
  );
  if (!lines.length)
    return (
      <Card title={chart.number}>
        <Empty title="No run that is shown has it">{chart.text}</Empty>
      </Card>
    );
  return (
    <div class={`run-chart ${look.wide ? "is-wide" : ""}`}>
      <Chart
        controls={
          <>
            <LookControls chart={chart.number} view={view} hasWidth={!isSingle} />
            {!isSingle && <PlaceControls number={chart.number} numbers={numbers} view={view} />}
          </>
        }
        title={`${view.best ? "best " : ""}${chart.number}`}
        lines={lines}
        drawing={{
          isLog: look.log,
          smooth: look.smooth,
          x: isTime ? "time" : "step",
          starts: [],
          along: view.along || "step",
        }}
        first={view.first}
        last={view.last}
        incidents={[]}
        height={isSingle ? Math.max(280, window.innerHeight - 430) : 260}
        onZoom={(first, last, isDragging) =>
          go(isOverSteps(view) ? { first: rounded(first), last: rounded(last) } : fractions(first, last), isDragging)
        }
      />
      {chart.text && <p class="foot-note">{chart.text}</p>}
    </div>
  );
}

function rounded(value: number | null): number | null {
  return value === null ? null : Math.round(value);
}

/** Validation first; without any, the loss. */
function usualNumbers(names: readonly string[]): string[] {
  const checked = names.filter((name) => /(^|[_/.])(val|valid|validation|eval|test)/i.test(name));
  const losses = checked.filter((name) => name.includes("loss"));
  const found = [...losses, ...checked].find(Boolean) ?? names.find((name) => name === "loss") ?? names[0];
  return found ? [found] : [];
}

function toLine(number: string, line: OverlayLine, color: string): Line {
  return {
    key: line.label,
    label: line.num_runs > 1 && !line.label.startsWith("median") ? `${line.label} · ${line.num_runs} runs` : line.label,
    color,
    curve: {
      run: line.run ?? line.label,
      quantity: "scalar",
      target: number,
      statistic: "value",
      rank: "all",
      steps: line.x.map((place) => place ?? 0),
      times: line.x,
      low: line.low,
      high: line.high,
      last: line.value,
      bad: line.value.map(() => false),
      is_whole: line.num_runs === 1,
    },
  };
}

/** All logged numbers at once: what is typed finds names, a click shows or removes one. */
function NumberFinder(props: { names: readonly string[]; shown: readonly string[]; onTurn: (name: string) => void }) {
  const [search, setSearch] = useState("");
  const found = props.names.filter((name) => matches(name, search));
  const listed = search ? found : [...new Set([...props.shown, ...found])];
  return (
    <>
      <Search value={search} onInput={setSearch} placeholder="Find a number  /" label="Find a logged number" />
      <div class="number-chips" role="group" aria-label="Logged numbers">
        {listed.slice(0, SHOWN).map((name) => (
          <button key={name} type="button" aria-pressed={props.shown.includes(name)} onClick={() => props.onTurn(name)}>
            {name}
          </button>
        ))}
        {listed.length > SHOWN && <small>{listed.length - SHOWN} more: type a part of the name</small>}
      </div>
    </>
  );
}
