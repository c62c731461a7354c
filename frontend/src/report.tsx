/** The offline report: the same screens, reading what was packed into the file. */

import { render } from "preact";
import type { Alerts, Curve, RunHome } from "./api";
import { App } from "./app";
import { decodeHeat, NOT_FINITE, RECORDED, type Heat } from "./heat/folding";
import { followAddress, view } from "./navigation";
import { answerFrom, ServerError, type Query, type Source } from "./server";
import "./styles/all.css";
import { followTheme } from "./theme";
import { parseSeries } from "./view";

/** What `vario export --html` writes before this script. */
interface Packed {
  made: number;
  run: RunHome;
  alerts: Alerts | null;
  /** The bytes of /api/heat, as base64: one for each quantity and statistic that is offered. */
  heats: string[];
  curves: Curve[];
}

declare global {
  interface Window {
    VARIO: Packed;
  }
}

const packed = window.VARIO;
const heats = packed.heats.map((text) =>
  decodeHeat(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer),
);

/** The run with only the quantities and statistics in the file. */
function offered(): RunHome {
  const quantities = packed.run.quantities.flatMap((quantity) => {
    const statistics = heats.filter((heat) => heat.head.quantity === quantity.name).map((heat) => heat.head.statistic);
    if (!statistics.length) return [];
    const first = statistics.includes(quantity.default_statistic) ? quantity.default_statistic : statistics[0]!;
    return [{ ...quantity, statistics, default_statistic: first }];
  });
  return { ...packed.run, quantities, cursor: "" };
}

/** The columns of a heat map between two steps. */
function cut(heat: Heat, first: number | null, last: number | null): Heat {
  const kept = heat.first.flatMap((from, column) =>
    (last === null || from <= last) && (first === null || heat.last[column]! >= first) ? [column] : [],
  );
  if (kept.length === heat.columns) return heat;
  const rows = heat.targets.length;
  const values = new Float32Array(rows * kept.length);
  const flags = new Uint8Array(rows * kept.length);
  for (let row = 0; row < rows; row++)
    kept.forEach((column, index) => {
      values[row * kept.length + index] = heat.values[row * heat.columns + column]!;
      flags[row * kept.length + index] = heat.flags[row * heat.columns + column]!;
    });
  return {
    ...heat,
    columns: kept.length,
    values,
    flags,
    first: kept.map((column) => heat.first[column]!),
    last: kept.map((column) => heat.last[column]!),
  };
}

/** A row of a heat map as a curve: the largest value of each bucket. */
function rowCurve(text: string): Curve[] {
  const { quantity, target, statistic } = parseSeries(text);
  const known = packed.curves.find(
    (curve) => curve.quantity === quantity && curve.target === target && (!statistic || curve.statistic === statistic),
  );
  if (known) return [known];
  const heat =
    heats.find(
      (each) => each.head.quantity === quantity && each.head.statistic === statistic && each.targets.includes(target),
    ) ?? heats.find((each) => each.head.quantity === quantity && each.targets.includes(target));
  if (!heat) return [];
  const row = heat.targets.indexOf(target) * heat.columns;
  const columns = heat.first.flatMap((_, column) => (heat.flags[row + column]! & RECORDED ? [column] : []));
  const values = columns.map((column) =>
    Number.isNaN(heat.values[row + column]!) ? null : heat.values[row + column]!,
  );
  return [
    {
      run: packed.run.run,
      quantity,
      target,
      statistic: heat.head.statistic,
      rank: "all",
      steps: columns.map((column) => heat.last[column]!),
      low: values,
      high: values,
      last: values,
      bad: columns.map((column) => (heat.flags[row + column]! & NOT_FINITE) !== 0),
      times: columns.map(() => null),
      is_whole: true,
    },
  ];
}

function number(value: Query[string]): number | null {
  return typeof value === "number" ? value : null;
}

const file: Source = {
  isReport: true,
  json(page, query) {
    if (page === "run") return Promise.resolve(offered());
    if (page === "alerts" && packed.alerts) return Promise.resolve(packed.alerts);
    if (page === "series") {
      const curves = ((query.series as readonly string[]) ?? []).flatMap(rowCurve);
      return curves.length
        ? Promise.resolve({ curves })
        : Promise.reject(new ServerError("This series is not in this file. Use `vario serve` to see all series.", 404));
    }
    return Promise.reject(new ServerError("Not in this file. Use `vario serve` to see it.", 404));
  },
  heat(_page, query) {
    const found =
      heats.find((heat) => heat.head.quantity === query.quantity && heat.head.statistic === query.statistic) ??
      heats.find((heat) => heat.head.quantity === query.quantity);
    if (!found)
      return Promise.reject(new ServerError("This quantity is not in this file. Use `vario serve` to see it.", 404));
    return Promise.resolve(cut(found, number(query.first), number(query.last)));
  },
};

answerFrom(file);
followAddress(true);
if (!view.get().run) view.set({ ...view.get(), run: packed.run.run });
window.addEventListener("hashchange", () => view.get().run || view.set({ ...view.get(), run: packed.run.run }));
followTheme();
render(<App />, document.getElementById("vario")!);
