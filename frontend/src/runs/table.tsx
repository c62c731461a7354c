/** The table of runs: any number of rows and columns; heads sort. */

import { useEffect, useMemo, useState } from "preact/hooks";
import type { RunRow, RunTable } from "../api";
import { useKeys } from "../keys";
import { CLEARED, go, useView } from "../navigation";
import { nextRow, scrollToRow, useVisibleRows } from "../parts/virtual";
import { ALL } from "../view";
import { cellText } from "./cells";
import { keyOf } from "./groups";
import { askedColumns, chosenRuns, shownColumns, sortKey, TITLES, type TableLine } from "./lines";
import { changeNote, NoteDialog } from "./note";
import { GroupRow, Row, toggled } from "./row";

const WIDTHS: Record<string, string> = {
  state: "104px",
  progress: "minmax(150px, 1.3fr)",
  time: "110px",
  loss: "90px",
  curve: "130px",
  alerts: "96px",
};

export function RunsTable(props: {
  lines: readonly TableLine[];
  table: RunTable | null;
  shown: readonly string[];
  onTurn: (key: string) => void;
  isWritable: boolean;
  onChanged: () => void;
}) {
  const { lines, table, shown } = props;
  const view = useView();
  const [current, setCurrent] = useState(-1);
  const [noting, setNoting] = useState<RunRow | null>(null);
  const columns = shownColumns(view);
  const asked = askedColumns(view);
  const places = useMemo(() => new Map(asked.map((key, at) => [key, at])), [asked.join("\n")]); // oxlint-disable-line react/exhaustive-deps -- the same names are the same columns
  const template = useMemo(
    () => ["34px", "minmax(200px, 2.2fr)", ...columns.map((key) => WIDTHS[key] ?? "minmax(106px, 1fr)")].join(" "),
    [columns],
  );
  const tint = useMemo(() => {
    const at = view.tint ? places.get(view.tint) : undefined;
    const column = at === undefined ? undefined : table?.columns[at];
    if (at === undefined || !column) return null;
    const texts = [...new Set(table!.rows.map((row) => cellText(row.values[at], "text")))].sort();
    return { at, column, texts };
  }, [view.tint, places, table]);
  const isNarrow = useIsNarrow();
  const rowHeight = isNarrow ? 110 + 20 * Math.ceil(columns.filter((key) => places.has(key)).length / 2) : 56;
  const [visible, box] = useVisibleRows(lines.length, rowHeight);
  const chosen = useMemo(() => new Set(chosenRuns(view, shown)), [view, shown]);
  const pick = (run: string) => go({ chosen: toggled([...chosen], run) }, true);
  const isAll = shown.length > 0 && shown.every((run) => chosen.has(run));

  useKeys((key) => {
    const next = nextRow(key, current, lines.length);
    if (next !== null) {
      setCurrent(next);
      scrollToRow(box.current, next, rowHeight);
      return true;
    }
    const line = lines[current];
    if (!line) return false;
    if (line.kind === "group") return key === "Enter" && (go({ closed: toggled(view.closed, line.value) }), true);
    if (key === "Enter") return (go({ ...CLEARED, run: line.row.run, screen: "home" }), true);
    if (key === "x") return (pick(line.row.run), true);
    if (key === "p") return (go({ pins: toggled(view.pins, line.row.run) }), true);
    if (key === "h") return (go({ hidden: [...view.hidden, line.row.run] }), true);
  });

  return (
    <div class="card runs-card" role="table" aria-label="Runs" aria-rowcount={lines.length}>
      <div class="runs-row is-head" role="row" style={{ gridTemplateColumns: template }}>
        <span role="columnheader" class="runs-pick">
          <input
            type="checkbox"
            checked={isAll}
            aria-label={isAll ? "Deselect all runs" : "Select all runs that are shown"}
            onChange={() => go({ chosen: isAll ? [] : [ALL] }, true)}
          />
        </span>
        <SortHead column="name" title="Run" />
        {columns.map((key) => {
          const at = places.get(key);
          const column = at === undefined ? undefined : table?.columns[at];
          const isNumber = column !== undefined && column.kind !== "text" && column.kind !== "state";
          return <SortHead key={key} column={key} title={TITLES[key] ?? column?.title ?? key} isNumber={isNumber} />;
        })}
      </div>
      <div
        class="runs-list"
        ref={box}
        role="rowgroup"
        style={{ paddingTop: `${visible.first * rowHeight}px`, height: `${lines.length * rowHeight}px` }}
      >
        {lines
          .slice(visible.first, visible.last)
          .map((line, index) =>
            line.kind === "group" ? (
              <GroupRow
                key={`group ${line.value}`}
                line={line}
                by={view.by}
                columns={columns}
                places={places}
                table={table!}
                template={template}
              />
            ) : (
              <Row
                key={line.row.run}
                line={line}
                columns={columns}
                places={places}
                table={table}
                template={template}
                tint={tint}
                isCurrent={visible.first + index === current}
                isChosen={chosen.has(line.row.run)}
                isPinned={view.pins.includes(line.row.run)}
                onPick={() => pick(line.row.run)}
                onTurn={() => props.onTurn(keyOf(line.row))}
                onNote={props.isWritable ? () => setNoting(line.row) : undefined}
                onStar={() =>
                  void changeNote(line.row.run, { is_starred: !line.row.is_starred }).then(
                    props.onChanged,
                    () => undefined,
                  )
                }
              />
            ),
          )}
      </div>
      {noting && <NoteDialog row={noting} onClose={() => setNoting(null)} onChanged={props.onChanged} />}
    </div>
  );
}

/** A head that sorts: lowest first, highest first, as before. */
function SortHead(props: { column: string; title: string; isNumber?: boolean }) {
  const view = useView();
  const key = sortKey(props.column);
  const direction = view.sort === key ? "ascending" : view.sort === `-${key}` ? "descending" : "none";
  const next = direction === "none" ? key : direction === "ascending" ? `-${key}` : "";
  return (
    <span role="columnheader" aria-sort={direction} class={props.isNumber ? "num" : ""}>
      <button type="button" class="sort" title={`Sort by ${props.title}`} onClick={() => go({ sort: next })}>
        {props.title}
        {direction === "ascending" ? " ↑" : direction === "descending" ? " ↓" : ""}
      </button>
    </span>
  );
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
