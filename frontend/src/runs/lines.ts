/** Which lines the table of runs shows, and in which order. */

import type { NewRows, RunRow, RunTable } from "../api";
import { fold, type Line } from "./groups";
import { matchesAny } from "../search";
import { ALL, type View } from "../view";

/** A line of the table: a run, or the head of a group. */
export type TableLine =
  | ({ kind: "run"; values: readonly unknown[] } & Line)
  | { kind: "group"; value: string; runs: number; at: number; isOpen: boolean };

/** The columns that a plain list has. */
export const USUAL = ["state", "progress", "time", "loss", "curve", "alerts"] as const;
export const TITLES: Record<string, string> = {
  state: "State",
  progress: "Progress",
  time: "Time",
  loss: "Last loss",
  curve: "Curve",
  alerts: "Alerts",
};

/** What the server sorts by for the columns that the page draws itself. */
export function sortKey(column: string): string {
  return { progress: "step", time: "duration", curve: "loss" }[column] ?? column;
}

export function shownColumns(view: View): readonly string[] {
  return view.columns.length ? view.columns : USUAL;
}

/** The columns whose values only the server knows. */
export function askedColumns(view: View): string[] {
  const extra = shownColumns(view).filter((key) => !(key in TITLES));
  return view.tint && !extra.includes(view.tint) ? [...extra, view.tint] : extra;
}

/** Whether the list is more than the plain one, so that the server has to make it. */
export function isTable(view: View): boolean {
  return Boolean(view.where || view.sort || view.by || askedColumns(view).length);
}

export function isShown(row: RunRow, view: View): boolean {
  const isOpen = row.state === "running" || row.state === "stalled";
  if ((view.which === "archived") !== row.is_archived) return false;
  if (view.which === "running" && !isOpen) return false;
  if (view.which === "ended" && isOpen) return false;
  if (view.which === "alerts" && !row.incidents.page && !row.incidents.warn) return false;
  if (view.hidden.includes(row.run)) return false;
  const code = [row.command, row.commit, row.branch];
  return matchesAny([row.title, row.run, row.host ?? "", row.state, ...row.tags, ...code], view.find);
}

/** The lines to show, pinned runs first. */
export function makeLines(
  rows: readonly RunRow[],
  table: RunTable | null,
  view: View,
  open: ReadonlySet<string>,
): TableLine[] {
  const known = new Map(rows.map((row) => [row.run, row]));
  if (!table) {
    const shown = pinned(
      rows.filter((row) => isShown(row, view)),
      view.pins,
    );
    return fold(shown, open).map((line) => Object.assign({ kind: "run" as const, values: [] }, line));
  }
  const shown = table.rows.flatMap((told) => {
    const row = known.get(told.run);
    return row && isShown(row, view) ? [{ row, told }] : [];
  });
  const line = ({ row, told }: (typeof shown)[number]): TableLine => ({
    kind: "run",
    row,
    values: told.values,
    size: 1,
    isOpen: false,
    isInside: Boolean(view.by),
  });
  if (!view.by)
    return [
      ...shown.filter(({ row }) => view.pins.includes(row.run)),
      ...shown.filter(({ row }) => !view.pins.includes(row.run)),
    ].map(line);
  return table.groups.flatMap((group, at): TableLine[] => {
    const members = shown.filter(({ told }) => told.group === group.value);
    const isOpen = !view.closed.includes(group.value);
    if (!members.length) return [];
    const head: TableLine = { kind: "group", value: group.value, runs: members.length, at, isOpen };
    return [head, ...(isOpen ? members.map(line) : [])];
  });
}

function pinned(rows: RunRow[], pins: readonly string[]): RunRow[] {
  if (!pins.length) return rows;
  return [...rows.filter((row) => pins.includes(row.run)), ...rows.filter((row) => !pins.includes(row.run))];
}

/** The runs of all lines: those that a selection of all means. */
export function runsOf(lines: readonly TableLine[], rows: readonly RunRow[], view: View): string[] {
  const groups = new Set(
    lines.flatMap((line) => (line.kind === "run" && line.size > 1 && line.row.group ? [line.row.group] : [])),
  );
  const folded = rows.filter((row) => row.group && groups.has(row.group) && isShown(row, view)).map((row) => row.run);
  return [...new Set([...lines.flatMap((line) => (line.kind === "run" ? [line.row.run] : [])), ...folded])];
}

export function chosenRuns(view: View, shown: readonly string[]): readonly string[] {
  return view.chosen.length === 1 && view.chosen[0] === ALL ? shown : view.chosen;
}

/** Replace changed rows, put new runs first, and drop removed ones. */
export function merge(rows: RunRow[], news: NewRows): RunRow[] {
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
