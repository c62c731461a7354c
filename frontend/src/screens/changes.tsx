/** The changes screen: the series that changed most recently. */

import { useState } from "preact/hooks";
import type { Change, RunHome } from "../api";
import { useKeys } from "../keys";
import { go, link, useView } from "../navigation";
import { Card, Choice, Empty, Name, Spark, Waiting } from "../parts/basics";
import { nextRow } from "../parts/virtual";
import { useAnswer } from "../server";
import { formatSeries } from "../view";
import { plural, whole } from "../format";

export function ChangesScreen(props: { home: RunHome }) {
  const view = useView();
  const { lately } = view;
  const top = view.top || "10";
  const [current, setCurrent] = useState(-1);
  const answer = useAnswer("changes", { run: props.home.run, last: lately, top });
  const changes = answer.value?.changes ?? [];
  useKeys((key) => {
    const next = nextRow(key, current, changes.length);
    if (next !== null)
      return (setCurrent(next), document.getElementById(`change-${next}`)?.scrollIntoView({ block: "nearest" }), true);
    if (key === "Enter" && changes[current])
      return (go({ screen: "series", series: [formatSeries(changes[current])] }), true);
  });
  const found = answer.value;
  return (
    <Card
      title={
        <>
          What changed{" "}
          <small>
            {found
              ? `${found.window_steps ? `in the last ${plural(found.window_steps, "step")} ` : ""}up to step ${whole(found.last_step)}, of ${plural(found.num_series, "series", "series")}`
              : ""}
          </small>
        </>
      }
      side={
        <>
          <Choice
            label="Recent"
            value={lately}
            onChange={(steps) => go({ lately: steps })}
            options={[
              ["", "a tenth of the run"],
              ["5", "5 steps"],
              ["20", "20 steps"],
              ["50", "50 steps"],
              ["100", "100 steps"],
              ["200", "200 steps"],
              ["1000", "1,000 steps"],
            ]}
          />
          <Choice
            label="Show"
            value={top}
            onChange={(number) => go({ top: number })}
            options={[
              ["10", "10"],
              ["20", "20"],
              ["50", "50"],
            ]}
          />
        </>
      }
    >
      {!found ? (
        <Waiting answer={answer} what="list of changes" />
      ) : changes.length === 0 ? (
        <Empty title="Nothing changed">All {whole(found.num_series)} series continue as before.</Empty>
      ) : (
        <ol class={`changes ${answer.isLoading ? "is-stale" : ""}`}>
          {changes.map((change, index) => (
            <Row key={formatSeries(change)} change={change} index={index} isCurrent={index === current} />
          ))}
        </ol>
      )}
    </Card>
  );
}

function Row(props: { change: Change; index: number; isCurrent: boolean }) {
  const { change } = props;
  return (
    <li id={`change-${props.index}`} class={`change ${props.isCurrent ? "is-current" : ""}`}>
      <a {...link({ screen: "series", series: [formatSeries(change)] })}>
        <span class="change-number">{props.index + 1}</span>
        <span class="change-name">
          <Name>{change.target}</Name>
          <small>
            {change.quantity.replaceAll("_", " ")} · {change.statistic}
            {change.num_alike > 1
              ? ` · and ${whole(change.num_alike - 1)} more${change.num_targets ? ` of ${whole(change.num_targets)}` : ""}`
              : ""}
          </small>
        </span>
        <span class={`change-kind kind-${change.kind}`}>{change.kind.replaceAll("_", " ")}</span>
        <span class="change-spark">
          <Spark
            values={change.spark}
            label={`${change.target} over steps`}
            tone={change.kind === "non-finite" ? "is-red" : ""}
          />
        </span>
        <span class={`change-text ${change.after === null ? "is-bad" : ""}`}>
          {change.text}
          <small>{change.step === null ? "" : `since step ${whole(change.step)}`}</small>
        </span>
      </a>
    </li>
  );
}
