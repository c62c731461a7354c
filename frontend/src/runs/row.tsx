/** One line of the table of runs. */

import type { RunRow, RunTable, TableColumn } from "../api";
import { CLEARED, go, link, useView } from "../navigation";
import { Found, Meter, Pill, Spark } from "../parts/basics";
import { SeverityIcon } from "../parts/severity-icon";
import { ago, duration, moment, number, percent, plural, stepsDone } from "../format";
import { cellText, tintOf } from "./cells";
import type { TableLine } from "./lines";

export interface Tint {
  column: TableColumn;
  at: number;
  texts: readonly string[];
}

export interface RowProps {
  line: Extract<TableLine, { kind: "run" }>;
  columns: readonly string[];
  /** Where each column's value is in a line's values. */
  places: ReadonlyMap<string, number>;
  table: RunTable | null;
  template: string;
  tint: Tint | null;
  isCurrent: boolean;
  isChosen: boolean;
  isPinned: boolean;
  onPick: () => void;
  onTurn: () => void;
  /** Not there if the server is read-only. */
  onNote: (() => void) | undefined;
  onStar: () => void;
}

export function Row(props: RowProps) {
  const { row, size, isOpen: isUnfolded, isInside, values } = props.line;
  const view = useView();
  const now = Date.now() / 1000;
  const color = props.tint && tintOf(values[props.tint.at], props.tint.column, props.tint.texts);
  return (
    <div
      class={`runs-row ${props.isCurrent ? "is-current" : ""} ${isInside ? "is-inside" : ""} ${props.isPinned ? "is-pinned" : ""}`}
      style={{ gridTemplateColumns: props.template }}
      role="row"
      aria-selected={props.isChosen}
      onClick={(event) => {
        const isElsewhere =
          (event.target as Element).closest("a, button, .runs-pick") || event.ctrlKey || event.metaKey;
        // Selecting text to copy it must not follow the link.
        if (!isElsewhere && !getSelection()?.toString()) go({ ...CLEARED, run: row.run, screen: "home" });
      }}
    >
      <span class="runs-pick" role="cell">
        <input
          type="checkbox"
          checked={props.isChosen}
          aria-label={`Select ${row.name} for comparison`}
          onChange={props.onPick}
        />
      </span>
      <span class="runs-name" role="cell">
        <span class="runs-title">
          {props.onNote && (
            <button
              type="button"
              class="star"
              aria-pressed={row.is_starred}
              aria-label={`Star ${row.name}`}
              onClick={props.onStar}
            >
              {row.is_starred ? "★" : "☆"}
            </button>
          )}
          <a {...link({ ...CLEARED, run: row.run, screen: "home" })} title={row.note && (row.note_by ? `${row.note} (${row.note_by})` : row.note)}>
            {color && <i class="runs-tint" style={{ background: color }} aria-hidden="true" />}
            {row.title}
          </a>
        </span>
        <small title={moment(row.started)}>
          {size > 1 && (
            <button type="button" class="link" aria-expanded={isUnfolded} onClick={props.onTurn}>
              {isUnfolded ? "▾" : "▸"} {plural(size, "run")}
            </button>
          )}
          {size > 1 ? " · " : ""}
          {row.title !== row.name && `${row.name} · `}
          {row.tags.map((tag) => (
            <span key={tag} class="tag">
              {tag}
            </span>
          ))}
          {ago(row.started, now)}
          {row.host ? ` · ${row.host}` : ""}
          {row.world_size > 1 ? ` · ${plural(row.world_size, "rank")}` : ""}
          <span class="runs-acts">
            <button
              type="button"
              class="link"
              aria-pressed={props.isPinned}
              aria-label={`${props.isPinned ? "Unpin" : "Pin"} ${row.name}`}
              onClick={() => go({ pins: toggled(view.pins, row.run) })}
            >
              {props.isPinned ? "Unpin" : "Pin"}
            </button>
            <button
              type="button"
              class="link"
              aria-label={`Hide ${row.name}`}
              onClick={() => go({ hidden: [...view.hidden, row.run] })}
            >
              Hide
            </button>
            {props.onNote && (
              <button type="button" class="link" aria-label={`Note on ${row.name}`} onClick={props.onNote}>
                Note
              </button>
            )}
          </span>
        </small>
      </span>
      {props.columns.map((key) => {
        const at = props.places.get(key);
        if (at === undefined) return <Usual key={key} column={key} row={row} />;
        const column = props.table?.columns[at];
        const text = cellText(values[at], column?.kind ?? "text");
        const isTinted = color !== null && props.tint?.at === at;
        return (
          <span
            key={key}
            class={`runs-value ${column?.kind === "text" ? "" : "num"}`}
            role="cell"
            data-title={column?.title ?? key}
            title={text}
          >
            {column?.kind === "state" ? <Pill state={String(values[at])} /> : text}
            {isTinted && <i class="runs-bar" style={{ background: color }} aria-hidden="true" />}
          </span>
        );
      })}
    </div>
  );
}

export function toggled(list: readonly string[], one: string): string[] {
  return list.includes(one) ? list.filter((each) => each !== one) : [...list, one];
}

/** A cell of the plain list. */
function Usual(props: { column: string; row: RunRow }) {
  const { row } = props;
  const isOpen = row.state === "running" || row.state === "stalled";
  if (props.column === "state")
    return (
      <span role="cell">
        <Pill state={row.state} />
      </span>
    );
  if (props.column === "progress")
    return (
      <span class={`runs-step ${row.error ? "has-error" : ""}`} role="cell">
        <span>{row.is_read ? stepsDone(row.step, row.total_steps) : "…"}</span>
        {row.error ? (
          <small class="red-text" title={row.error}>
            {row.error}
          </small>
        ) : (
          <Meter share={row.progress} label={`${row.name}: ${percent(row.progress)}`} />
        )}
      </span>
    );
  if (props.column === "time")
    return (
      <span class="runs-eta" role="cell">
        {isOpen && row.eta_seconds !== null
          ? `${duration(row.eta_seconds)} left`
          : !isOpen && row.started && row.ended
            ? `took ${duration(row.ended - row.started)}`
            : "–"}
      </span>
    );
  if (props.column === "loss")
    return (
      <span role="cell" class={`runs-loss ${isNaNLoss(row) ? "is-bad" : ""}`}>
        {isNaNLoss(row) ? "NaN" : number(row.loss)}
        {row.loss_is_found && <Found isShort />}
      </span>
    );
  if (props.column === "curve")
    return (
      <span class="runs-spark" role="cell">
        <Spark values={row.spark} label={`Loss of ${row.name}`} />
      </span>
    );
  return (
    <span class="runs-alerts" role="cell">
      {(["page", "warn"] as const).map(
        (severity) =>
          row.incidents[severity] > 0 && (
            <a
              key={severity}
              class={`count is-${severity}`}
              {...link({ ...CLEARED, run: row.run, screen: "alerts" })}
              aria-label={`${plural(row.incidents[severity], "incident")} of severity ${severity}`}
              title={`${plural(row.incidents[severity], "incident")} of severity ${severity}`}
            >
              <SeverityIcon severity={severity} />
              {row.incidents[severity]}
            </a>
          ),
      )}
    </span>
  );
}

/** Whether the newest loss is not a number although there were losses. */
function isNaNLoss(row: RunRow): boolean {
  return row.loss === null && row.spark.some((value) => value !== null);
}

/** The head of a group: how many runs, and mean and range of each column. */
export function GroupRow(props: {
  line: Extract<TableLine, { kind: "group" }>;
  by: string;
  columns: readonly string[];
  places: ReadonlyMap<string, number>;
  table: RunTable;
  template: string;
}) {
  const view = useView();
  const { value, runs, at, isOpen } = props.line;
  const group = props.table.groups[at];
  return (
    <div class="runs-row is-group" style={{ gridTemplateColumns: props.template }} role="row">
      <span role="cell" />
      <span class="runs-name" role="cell">
        <button
          type="button"
          class="link"
          aria-expanded={isOpen}
          onClick={() => go({ closed: toggled(view.closed, value) })}
        >
          {isOpen ? "▾" : "▸"} {props.by} {value}
        </button>
        <small>{plural(runs, "run")}</small>
      </span>
      {props.columns.map((key) => {
        const place = props.places.get(key);
        const mean = place === undefined ? null : (group?.means[place] ?? null);
        if (place === undefined || mean === null) return <span key={key} role="cell" />;
        const kind = props.table.columns[place]!.kind;
        const low = group?.lows[place];
        const high = group?.highs[place];
        return (
          <span key={key} class="runs-value num" role="cell">
            {cellText(mean, kind)}
            {low !== high && (
              <small>
                {cellText(low, kind)} – {cellText(high, kind)}
              </small>
            )}
          </span>
        );
      })}
    </div>
  );
}
