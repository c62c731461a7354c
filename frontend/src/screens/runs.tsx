/** The list of runs: as a table to sort, filter and group, as charts, and as what mattered. */

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { RunRow } from "../api";
import { NoToken } from "../app";
import { useHeard, useStream } from "../live";
import { go, useView } from "../navigation";
import { Card, Empty, Search, Segments, Waiting } from "../parts/basics";
import { SketchTour } from "../parts/tour";
import { RunCharts } from "../runs/charts";
import { Chooser } from "../runs/chooser";
import { Effects } from "../runs/effects";
import { Filter } from "../runs/filter";
import { askedColumns, chosenRuns, isTable, makeLines, merge, runsOf } from "../runs/lines";
import { RunsTable } from "../runs/table";
import { SelectionBar } from "../runs/selection";
import { useAnswer } from "../server";
import type { View } from "../view";
import { plural, whole } from "../format";

export function RunsScreen() {
  const view = useView();
  const answer = useAnswer("runs", {});
  const [rows, setRows] = useState<RunRow[] | null>(null);
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const [isChoosing, setChoosing] = useState(false);
  useEffect(() => setRows(answer.value?.runs ?? null), [answer.value]);
  useStream(answer.value ? { cursor: answer.value.cursor } : null);

  const asked = isTable(view)
    ? { column: askedColumns(view), where: view.where, sort: view.sort, group: view.by }
    : null;
  const told = useAnswer("table", asked);
  const table = asked && !told.error ? told.value : null;
  const [news, setNews] = useState(0);
  useHeard({
    runs: (changes) => {
      setRows((last) => last && merge(last, changes));
      setNews((last) => last + 1);
    },
  });
  // Values of the table follow, but not faster than they can be read.
  const { again } = told;
  useEffect(() => {
    if (!news) return;
    const wait = window.setTimeout(again, 1000);
    return () => window.clearTimeout(wait);
  }, [news, again]);

  // A list of very many runs comes before all of them are read; for the table they were.
  const askForRows = answer.again;
  const isPartial = rows?.some((row) => !row.is_read) ?? false;
  const completed = useRef<unknown>(null);
  useEffect(() => {
    if (!told.value || !isPartial || completed.current === told.value) return;
    completed.current = told.value;
    askForRows();
  }, [told.value, isPartial, askForRows]);

  const lines = useMemo(() => makeLines(rows ?? [], table, view, open), [rows, table, view, open]);
  const shown = useMemo(() => runsOf(lines, rows ?? [], view), [lines, rows, view]);
  const turn = (key: string) =>
    setOpen((last) => {
      const next = new Set(last);
      if (!next.delete(key)) next.add(key);
      return next;
    });

  const chosen = chosenRuns(view, shown);
  // The server knows the filter; whatever else is left out, it is told run by run.
  const asksAll =
    !chosen.length &&
    !view.find &&
    view.which === "all" &&
    !view.hidden.length &&
    !rows?.some((row) => row.is_archived);
  const about = asksAll ? null : chosen.length ? chosen : shown;

  const changed = () => {
    answer.again();
    if (asked) again();
  };

  if (answer.error?.status === 401) return <NoToken />;
  if (!rows) return <Waiting answer={answer} what="list of runs" />;
  const leftOut = answer.value?.left_out ?? [];
  const isWaiting = asked !== null && !table && !told.error;
  return (
    <>
      <div class="run-head">
        <h1>Runs</h1>
        <span class="run-facts">
          <span>
            <b>{whole(rows.length)}</b> in {answer.value?.folder}
          </span>
          {table && table.rows.length < table.total && <span>{whole(table.rows.length)} match the filter</span>}
          {view.hidden.length > 0 && (
            <span>
              {whole(view.hidden.length)} hidden{" "}
              <button type="button" class="link" onClick={() => go({ hidden: [] })}>
                Show
              </button>
            </span>
          )}
        </span>
        <div class="controls push">
          <Segments<View["which"]>
            label="Which runs"
            value={view.which}
            onChange={(which) => go({ which })}
            options={[
              ["all", "All"],
              ["running", "Running"],
              ["alerts", "With alerts"],
              ["ended", "Ended"],
              ["archived", "Archived"],
            ]}
          />
          <Search
            value={view.find}
            onInput={(find) => go({ find }, true)}
            placeholder="Search runs  /"
            label="Search runs"
          />
        </div>
      </div>
      {rows.length > 0 && (
        <div class="controls runs-tools">
          <Filter error={asked ? told.error : null} />
          <Segments<View["list"]>
            label="Show runs as"
            value={view.list}
            onChange={(list) => go({ list })}
            options={[
              ["table", "Table"],
              ["charts", "Charts"],
              ["effects", "What mattered"],
            ]}
          />
          {view.list === "table" && (
            <button type="button" class="button" aria-expanded={isChoosing} onClick={() => setChoosing(!isChoosing)}>
              Columns
            </button>
          )}
        </div>
      )}
      {isChoosing && view.list === "table" && <Chooser onClose={() => setChoosing(false)} />}
      {rows.length === 0 ? (
        <Card>
          <Empty title="No runs yet">
            Add <code>vario.watch(model, optimizer)</code> to your training loop, run a script with{" "}
            <code>vario run train.py</code>, or try <code>vario demo</code>. New runs appear here automatically.
          </Empty>
          <SketchTour />
        </Card>
      ) : view.list === "charts" ? (
        <RunCharts runs={about} isWritable={answer.value?.is_writable ?? false} />
      ) : view.list === "effects" ? (
        <Effects runs={about} />
      ) : isWaiting ? (
        <Waiting answer={told} what="table" />
      ) : lines.length === 0 ? (
        <Card>
          <Empty title="No matching runs">
            <button type="button" class="link" onClick={() => go({ find: "", which: "all", where: "", hidden: [] })}>
              Show all {whole(rows.length)}
            </button>
          </Empty>
        </Card>
      ) : (
        <RunsTable
          lines={lines}
          table={table}
          shown={shown}
          onTurn={turn}
          isWritable={answer.value?.is_writable ?? false}
          onChanged={changed}
        />
      )}
      {leftOut.length > 0 && (
        <Card title={`${plural(leftOut.length, "folder")} could not be read`}>
          <ul class="plain-list">
            {leftOut.map((each) => (
              <li key={each.path}>
                <code>{each.path}</code> <small>{each.error}</small>
              </li>
            ))}
          </ul>
        </Card>
      )}
      <SelectionBar chosen={chosen} />
    </>
  );
}
