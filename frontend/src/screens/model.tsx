/** The model screen: module tree with shapes, share of parameters and latest numbers. */

import { useMemo, useState } from "preact/hooks";
import type { Maybe, Model, Module, RunHome } from "../api";
import { useKeys } from "../keys";
import { go, link, useView } from "../navigation";
import { Card, Empty, Search, Waiting } from "../parts/basics";
import { PartPictures } from "../parts/part-pictures";
import { nextRow, scrollToRow, useVisibleRows } from "../parts/virtual";
import { matchesAny } from "../search";
import { isReport, useAnswer } from "../server";
import { bytes, count, number, percent, whole } from "../format";

interface TreeRow {
  key: string;
  label: string;
  detail: string;
  depth: number;
  num: number;
  share: number;
  latest: Record<string, Maybe>;
  module: Module | null;
  note: string;
  isOpen: boolean;
  hasMore: boolean;
}

const ROW = 34;

export function ModelScreen(props: { home: RunHome }) {
  const view = useView();
  const answer = useAnswer("model", { run: props.home.run });
  const model = answer.value;
  const [open, setOpen] = useState<Set<string> | null>(null);
  const opened = useMemo(() => open ?? startOpen(model), [open, model]);
  const rows = useMemo(() => treeRows(model, opened, view.only), [model, opened, view.only]);
  const columns = useMemo(() => statisticsOf(model), [model]);
  const ranges = useMemo(() => columns.map((name) => rangeOf(rows, name)), [rows, columns]);
  const [visible, box] = useVisibleRows(rows.length, ROW);
  const toggle = (key: string) => {
    const next = new Set(opened);
    if (!next.delete(key)) next.add(key);
    setOpen(next);
  };
  const [current, setCurrent] = useState<string | null>(null);
  useKeys((key, event) => {
    const at = rows.findIndex((row) => row.key === current);
    const next = nextRow(key, at, rows.length);
    if (next !== null) {
      // Enter is for the row from now on, not for a button that was clicked before.
      if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
      setCurrent(rows[next]!.key);
      scrollToRow(box.current, next, ROW);
      return true;
    }
    if (key === "Escape" && view.only) return (go({ only: "" }, true), true);
    const row = rows[at];
    if (!row) return false;
    if (key === "Escape") {
      const closing = row.isOpen ? row : parentOf(rows, at);
      return closing && (toggle(closing.key), setCurrent(closing.key), true);
    }
    if (key !== "Enter" || (event.target as HTMLElement).closest("button, a")) return false;
    if (!row.module) {
      const shown = columns.find((name) => name in row.latest);
      return shown !== undefined && (go({ screen: "series", series: [seriesOf(shown, row.key)] }), true);
    }
    if (!view.only) return row.hasMore && (toggle(row.key), true);
    // What was found, in its place.
    setOpen(new Set([...opened, ...pathTo(model!, row.key)]));
    return (go({ only: "" }, true), true);
  });
  if (!model) return <Waiting answer={answer} what="model" />;
  const layout = {
    gridTemplateColumns: `minmax(var(--name-column), 2.2fr) var(--count-column) minmax(var(--share-column), 1fr) ${columns.map(() => "minmax(96px, 0.8fr)").join(" ")}`,
  };
  return (
    <>
      <Memory model={model} />
      {!isReport() && <PartPictures home={props.home} />}
      <Card
        class="model-card"
        title={
          <>
            Model <small>{count(model.num_parameters ?? model.modules[0]?.num_parameters)} parameters</small>
          </>
        }
        side={
          <>
            <Search
              value={view.only}
              onInput={(only) => go({ only }, true)}
              placeholder="Find a module  /"
              label="Find a module"
            />
            <button type="button" onClick={() => setOpen(new Set(model.modules.map((module) => module.name)))}>
              Unfold all
            </button>
            <button type="button" onClick={() => setOpen(new Set(["root", ""]))}>
              Fold all
            </button>
          </>
        }
      >
        {rows.length === 0 ? (
          <Empty title={view.only ? "No matching modules" : "No model recorded"}>
            {view.only ? "Clear the search to show all." : "Runs imported from other tools have only curves."}
          </Empty>
        ) : (
          <div class="model-scroll" role="treegrid" aria-label="Modules">
            <div class="model-row is-head" role="row" style={layout}>
              <span role="columnheader">Module</span>
              <span role="columnheader" class="num">
                Parameters
              </span>
              <span role="columnheader">Share</span>
              {columns.map((name) => (
                <span key={name} role="columnheader" title={`${name.replace("|", " ")}, newest`}>
                  {name.replace("|", " ").replaceAll("_", " ")}
                </span>
              ))}
            </div>
            <div ref={box} style={{ paddingTop: `${visible.first * ROW}px`, height: `${rows.length * ROW}px` }}>
              {rows.slice(visible.first, visible.last).map((row) => (
                <div
                  key={row.key}
                  class={`model-row ${row.module ? "" : "is-parameter"} ${row.key === current ? "is-current" : ""}`}
                  role="row"
                  aria-selected={row.key === current}
                  aria-level={row.depth + 1}
                  aria-expanded={row.hasMore ? row.isOpen : undefined}
                  style={layout}
                >
                  <span role="gridcell" class="model-name" style={{ paddingLeft: `${row.depth * 16}px` }}>
                    {row.hasMore ? (
                      <button
                        type="button"
                        class="twist"
                        aria-label={`${row.isOpen ? "Close" : "Open"} ${row.label}`}
                        onClick={() => toggle(row.key)}
                      >
                        {row.isOpen ? "▾" : "▸"}
                      </button>
                    ) : (
                      <i class="twist" />
                    )}
                    <b title={row.key}>{row.label}</b>
                    <small>{row.detail}</small>
                    {row.note && <em>{row.note}</em>}
                  </span>
                  <span role="gridcell" class="num" title={whole(row.num)}>
                    {count(row.num)}
                  </span>
                  <span role="gridcell" class="share">
                    <i style={{ width: `${Math.max(0.5, row.share * 100)}%` }} />
                    <small>{percent(row.share)}</small>
                  </span>
                  {columns.map((name, index) => (
                    <Bar key={name} row={row} name={name} range={ranges[index]!} />
                  ))}
                </div>
              ))}
            </div>
          </div>
        )}
      </Card>
    </>
  );
}

/** The newest value with a bar on a logarithmic scale over all shown rows. */
function Bar(props: { row: TreeRow; name: string; range: [number, number] }) {
  const { row, name } = props;
  if (!(name in row.latest)) return <span role="gridcell" class="value-bar" />;
  const value = row.latest[name] ?? null;
  if (value === null)
    return (
      <span role="gridcell" class="value-bar is-bad">
        NaN
      </span>
    );
  const [low, high] = props.range;
  const size = Math.abs(value);
  const share =
    size > 0 && high > low
      ? 0.06 + 0.94 * (Math.log(Math.max(size, low) / low) / Math.log(high / low))
      : size > 0
        ? 1
        : 0;
  const target = row.module ? "" : row.key;
  const bar = (
    <>
      <i style={{ width: `${share * 100}%` }} />
      <span>{number(value, 3)}</span>
    </>
  );
  return (
    <span role="gridcell" class="value-bar">
      {target ? <a {...link({ screen: "series", series: [seriesOf(name, target)] })}>{bar}</a> : bar}
    </span>
  );
}

/** The series of a latest number; for updates it is the mean of a separate target. */
function seriesOf(name: string, target: string): string {
  const [quantity, statistic] = name.split("|") as [string, string];
  return quantity === "update" ? `update|${target}:${statistic}|mean` : `${quantity}|${target}|${statistic}`;
}

function Memory(props: { model: Model }) {
  const memory = props.model.memory;
  if (!memory || (memory.predicted === null && memory.measured === null)) return null;
  const top = Math.max(memory.predicted ?? 0, memory.measured ?? 0) || 1;
  const lines = [
    ["Predicted", memory.predicted, "peak of the device, predicted before the run"],
    [
      "Measured",
      memory.measured,
      memory.of === "device" ? "peak of the device during the run" : "peak of the process during the run",
    ],
  ] as const;
  const error =
    memory.predicted !== null && memory.measured !== null && memory.of === "device"
      ? memory.predicted / memory.measured - 1
      : null;
  return (
    <Card
      title="Memory"
      side={
        error !== null && (
          <small>
            prediction {error >= 0 ? "+" : "−"}
            {percent(Math.abs(error))}
          </small>
        )
      }
    >
      <dl class="memory">
        {lines.map(([name, value, note]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <i style={{ width: `${((value ?? 0) / top) * 100}%` }} />
              <b>{value === null ? "–" : bytes(value)}</b>{" "}
              <small>
                {value === null
                  ? name === "Predicted"
                    ? "log vario.predict_memory(...).scalars() to get one"
                    : "not recorded"
                  : note}
              </small>
            </dd>
          </div>
        ))}
      </dl>
    </Card>
  );
}

/** The row that a row is below. */
function parentOf(rows: readonly TreeRow[], at: number): TreeRow | undefined {
  return rows.slice(0, at).findLast((row) => row.depth < rows[at]!.depth);
}

/** The names of a module and of all that it is in. */
function pathTo(model: Model, name: string): string[] {
  const path: string[] = [];
  let depth = Infinity;
  for (let at = model.modules.findIndex((module) => module.name === name); at >= 0; at--) {
    const module = model.modules[at]!;
    if (module.depth >= depth) continue;
    depth = module.depth;
    path.push(module.name);
  }
  return path;
}

/** As many levels as fit a window. */
function startOpen(model: Model | null): Set<string> {
  const modules = model?.modules ?? [];
  let depth = 0;
  while (depth < 8 && modules.filter((module) => module.depth <= depth + 1).length <= 30) depth++;
  return new Set(modules.filter((module) => module.depth < depth).map((module) => module.name));
}

function treeRows(model: Model | null, open: ReadonlySet<string>, only: string): TreeRow[] {
  const rows: TreeRow[] = [];
  const modules = model?.modules ?? [];
  const total = model?.num_parameters || modules[0]?.num_parameters || 1;
  let closedAt = Infinity;
  modules.forEach((module, index) => {
    const isFound = matchesAny([module.name, module.class], only);
    if (!only) {
      if (module.depth > closedAt) return;
      closedAt = Infinity;
    }
    const hasMore = module.parameters.length > 0 || (modules[index + 1]?.depth ?? -1) > module.depth;
    const isOpen = open.has(module.name);
    if (isFound)
      rows.push({
        key: module.name,
        label: only ? module.name : module.name.split(".").pop() || module.class,
        detail: module.class,
        depth: only ? 0 : module.depth,
        num: module.num_parameters,
        share: module.share ?? module.num_parameters / total,
        latest: module.latest,
        module,
        note: "",
        isOpen,
        hasMore,
      });
    if (!isOpen && !only) closedAt = module.depth;
    if ((isOpen || only) && isFound)
      for (const parameter of module.parameters) {
        const notes = [
          parameter.trainable ? "" : "frozen",
          parameter.shared_with?.length ? `shared with ${parameter.shared_with.join(", ")}` : "",
        ];
        rows.push({
          key: parameter.name,
          label: parameter.name.split(".").pop()!,
          detail: `${parameter.shape.join(" × ") || "scalar"} ${parameter.dtype}`,
          depth: (only ? 0 : module.depth) + 1,
          num: parameter.count,
          share: parameter.count / total,
          latest: parameter.latest ?? {},
          module: null,
          note: notes.filter(Boolean).join(", "),
          isOpen: false,
          hasMore: false,
        });
      }
  });
  return rows;
}

function statisticsOf(model: Model | null): string[] {
  const names = new Set<string>();
  model?.modules.forEach((module) => {
    Object.keys(module.latest).forEach((name) => names.add(name));
    module.parameters.forEach((parameter) => Object.keys(parameter.latest ?? {}).forEach((name) => names.add(name)));
  });
  return [...names].slice(0, 5);
}

function rangeOf(rows: readonly TreeRow[], name: string): [number, number] {
  const sizes = rows.map((row) => Math.abs(row.latest[name] ?? 0)).filter((size) => size > 0 && Number.isFinite(size));
  return sizes.length ? [Math.min(...sizes), Math.max(...sizes)] : [1, 1];
}
