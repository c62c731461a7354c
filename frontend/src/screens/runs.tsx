/** All runs under the folder: how each fares, and which to compare. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { NewRows, RunRow } from "../api";
import { NoToken } from "../app";
import { fold, keyOf, type Line } from "../groups";
import { useKeys } from "../keys";
import { useHeard, useStream } from "../live";
import { CLEARED, go, link } from "../navigation";
import { Card, Empty, Found, Meter, Pill, Search, Segments, Spark, Waiting } from "../parts/basics";
import { nextRow, useStretch } from "../parts/virtual";
import { useAnswer } from "../server";
import { ago, duration, moment, number, percent, plural, stepsDone, whole } from "../format";

type Filter = "all" | "running" | "alerts" | "ended";

export function RunsScreen() {
  const answer = useAnswer("runs", {});
  const [rows, setRows] = useState<RunRow[] | null>(null);
  const [search, setSearch] = useState("");
  const [filter, setFilter] = useState<Filter>("all");
  const [chosen, setChosen] = useState<string[]>([]);
  const [current, setCurrent] = useState(-1);
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  useEffect(() => setRows(answer.value?.runs ?? null), [answer.value]);
  useStream(answer.value ? { cursor: answer.value.cursor } : null);
  useHeard({ runs: (news) => setRows((last) => last && merge(last, news)) });

  const shown = useMemo(
    () =>
      fold(
        (rows ?? []).filter((row) => isShown(row, search, filter)),
        open,
      ),
    [rows, search, filter, open],
  );
  const isNarrow = useIsNarrow();
  const rowHeight = isNarrow ? 110 : 56;
  const [stretch, box] = useStretch(shown.length, rowHeight);
  const pick = (run: string) =>
    setChosen((last) => (last.includes(run) ? last.filter((each) => each !== run) : [...last, run]));
  const turn = (key: string) =>
    setOpen((last) => {
      const next = new Set(last);
      if (!next.delete(key)) next.add(key);
      return next;
    });

  useKeys((key) => {
    const next = nextRow(key, current, shown.length);
    if (next !== null) {
      setCurrent(next);
      const top = (box.current?.getBoundingClientRect().top ?? 0) + next * rowHeight;
      if (top < 110 || top > window.innerHeight - rowHeight - 20) window.scrollBy(0, top - window.innerHeight / 2);
      return true;
    }
    const row = shown[current]?.row;
    if (!row) return false;
    if (key === "Enter") return (go({ ...CLEARED, run: row.run, screen: "home" }), true);
    if (key === "x") return (pick(row.run), true);
  });

  if (answer.error?.status === 401) return <NoToken />;
  if (!rows) return <Waiting answer={answer} what="list of runs" />;
  const leftOut = answer.value?.left_out ?? [];
  return (
    <>
      <div class="run-head">
        <h1>Runs</h1>
        <span class="run-facts">
          <span>
            <b>{whole(rows.length)}</b> in {answer.value?.folder}
          </span>
        </span>
        <div class="controls push">
          <Segments<Filter>
            label="Which runs"
            value={filter}
            onChange={setFilter}
            options={[
              ["all", "All"],
              ["running", "Running"],
              ["alerts", "With alerts"],
              ["ended", "Ended"],
            ]}
          />
          <Search value={search} onInput={setSearch} placeholder="Search runs  /" label="Search runs" />
        </div>
      </div>
      {rows.length === 0 ? (
        <Card>
          <Empty title="No runs here yet">
            Watch a training with <code>vario.watch(model, optimizer)</code>, start a script with{" "}
            <code>vario run train.py</code>, or try <code>vario demo</code>. The run appears here by itself.
          </Empty>
        </Card>
      ) : shown.length === 0 ? (
        <Card>
          <Empty title="No run fits">
            <button type="button" class="link" onClick={() => (setSearch(""), setFilter("all"))}>
              Show all {whole(rows.length)}
            </button>
          </Empty>
        </Card>
      ) : (
        <section class="card runs-card" role="table" aria-label="Runs" aria-rowcount={shown.length}>
          <div class="runs-row is-head" role="row">
            {["", "Run", "State", "Progress", "Time", "Loss", "", "Alerts"].map((title, index) => (
              <span key={index} role="columnheader">
                {title}
              </span>
            ))}
          </div>
          <div
            class="runs-list"
            ref={box}
            role="rowgroup"
            style={{ paddingTop: `${stretch.first * rowHeight}px`, height: `${shown.length * rowHeight}px` }}
          >
            {shown.slice(stretch.first, stretch.last).map((line, index) => (
              <Row
                key={line.row.run}
                line={line}
                isCurrent={stretch.first + index === current}
                isChosen={chosen.includes(line.row.run)}
                onPick={() => pick(line.row.run)}
                onTurn={() => turn(keyOf(line.row))}
              />
            ))}
          </div>
        </section>
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
      {chosen.length > 0 && (
        <div class="chosen-bar" role="region" aria-label="Chosen runs">
          <span>{plural(chosen.length, "run")} chosen</span>
          <button
            type="button"
            class="button is-main"
            disabled={chosen.length < 2}
            onClick={() => go({ ...CLEARED, run: chosen[0]!, runs: chosen.slice(1), screen: "compare" })}
          >
            {chosen.length < 2 ? "Choose another to compare" : "Compare"}
          </button>
          <button type="button" class="button" onClick={() => setChosen([])}>
            Clear
          </button>
        </div>
      )}
    </>
  );
}

function Row(props: { line: Line; isCurrent: boolean; isChosen: boolean; onPick: () => void; onTurn: () => void }) {
  const { row, size, isOpen: isUnfolded, isInside } = props.line;
  const now = Date.now() / 1000;
  const isOpen = row.state === "running" || row.state === "stalled";
  return (
    <div
      class={`runs-row ${props.isCurrent ? "is-current" : ""} ${isInside ? "is-inside" : ""}`}
      role="row"
      aria-selected={props.isChosen}
      onClick={(event) => {
        const isElsewhere =
          (event.target as Element).closest("a, button, .runs-pick") || event.ctrlKey || event.metaKey;
        // Who marks a text to copy it does not mean to go anywhere.
        if (!isElsewhere && !getSelection()?.toString()) go({ ...CLEARED, run: row.run, screen: "home" });
      }}
    >
      <span class="runs-pick" role="cell">
        <input
          type="checkbox"
          checked={props.isChosen}
          aria-label={`Choose ${row.name} for comparing`}
          onChange={props.onPick}
        />
      </span>
      <span class="runs-name" role="cell">
        <a {...link({ ...CLEARED, run: row.run, screen: "home" })}>{row.name}</a>
        <small title={moment(row.started)}>
          {size > 1 && (
            <button type="button" class="link" aria-expanded={isUnfolded} onClick={props.onTurn}>
              {isUnfolded ? "▾" : "▸"} {plural(size, "run")}
            </button>
          )}
          {size > 1 ? " · " : ""}
          {ago(row.started, now)}
          {row.host ? ` · ${row.host}` : ""}
          {row.world_size > 1 ? ` · ${plural(row.world_size, "rank")}` : ""}
        </small>
      </span>
      <span role="cell">
        <Pill state={row.state} />
      </span>
      <span class={`runs-step ${row.error ? "has-error" : ""}`} role="cell">
        <span>{row.is_read ? stepsDone(row.step, row.total_steps) : "…"}</span>
        {row.error ? (
          <small class="critical-text" title={row.error}>
            {row.error}
          </small>
        ) : (
          <Meter share={row.progress} label={`${row.name}: ${percent(row.progress)}`} />
        )}
      </span>
      <span class="runs-eta" role="cell">
        {isOpen && row.eta_seconds !== null
          ? `${duration(row.eta_seconds)} left`
          : !isOpen && row.started && row.ended
            ? `took ${duration(row.ended - row.started)}`
            : "–"}
      </span>
      <span role="cell" class={`runs-loss ${isNaNLoss(row) ? "is-bad" : ""}`}>
        {isNaNLoss(row) ? "NaN" : number(row.loss)}
        {row.loss_is_found && <Found isShort />}
      </span>
      <span class="runs-spark" role="cell">
        <Spark values={row.spark} label={`Loss of ${row.name}`} />
      </span>
      <span class="runs-alerts" role="cell">
        {row.critical > 0 && (
          <a
            class="count"
            {...link({ ...CLEARED, run: row.run, screen: "alerts" })}
            aria-label={plural(row.critical, "critical incident")}
            title={plural(row.critical, "critical incident")}
          >
            {row.critical}
          </a>
        )}
        {row.warning > 0 && (
          <a
            class="count warning"
            {...link({ ...CLEARED, run: row.run, screen: "alerts" })}
            aria-label={plural(row.warning, "warning")}
            title={plural(row.warning, "warning")}
          >
            {row.warning}
          </a>
        )}
      </span>
    </div>
  );
}

/** The newest loss is no number, though there were losses. */
function isNaNLoss(row: RunRow): boolean {
  return row.loss === null && row.spark.some((value) => value !== null);
}

function isShown(row: RunRow, search: string, filter: Filter): boolean {
  const isOpen = row.state === "running" || row.state === "stalled";
  if (filter === "running" && !isOpen) return false;
  if (filter === "ended" && isOpen) return false;
  if (filter === "alerts" && !row.critical && !row.warning) return false;
  const text = `${row.name} ${row.run} ${row.host ?? ""} ${row.state}`.toLowerCase();
  return search
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

/** Rows that changed take the place of the old ones, new runs come first, and those that went are left out. */
function merge(rows: RunRow[], news: NewRows): RunRow[] {
  if (news.is_whole) return news.runs;
  const changed = new Map(news.runs.map((row) => [row.run, row]));
  const gone = new Set(news.gone);
  const left = rows.filter((row) => !gone.has(row.run));
  const kept = left.map((row) => {
    const other = changed.get(row.run);
    changed.delete(row.run);
    return other ?? row;
  });
  return [...changed.values(), ...kept];
}

function useIsNarrow(): boolean {
  const [isNarrow, setNarrow] = useState(() => matchMedia("(max-width: 860px)").matches);
  useEffect(() => {
    const query = matchMedia("(max-width: 860px)");
    const look = () => setNarrow(query.matches);
    query.addEventListener("change", look);
    return () => query.removeEventListener("change", look);
  }, []);
  return isNarrow;
}
