/** The heat map as a table: for each target the newest value, the largest and when, and the first NaN. */

import { Name } from "../parts/basics";
import { matches } from "../search";
import { number, whole } from "../format";
import { NOT_FINITE, RECORDED, type Heat } from "./folding";
import { rowMiddle } from "./range";

interface RowFacts {
  target: string;
  /** NaN if the newest recorded value is not finite, null if nothing was recorded. */
  newest: number | null;
  usual: number;
  largest: number;
  at: number;
  badAt: number | null;
}

export function rowFacts(heat: Heat, row: number): RowFacts {
  const facts: RowFacts = {
    target: heat.targets[row]!,
    newest: null,
    usual: rowMiddle(heat.values, row, heat.columns),
    largest: NaN,
    at: 0,
    badAt: null,
  };
  for (let column = 0; column < heat.columns; column++) {
    const value = heat.values[row * heat.columns + column]!;
    const flags = heat.flags[row * heat.columns + column]!;
    if (!(flags & RECORDED)) continue;
    const isBad = (flags & NOT_FINITE) !== 0;
    if (facts.badAt === null && isBad) facts.badAt = heat.first[column]!;
    // A column of several steps keeps the largest finite value next to a NaN, so the newest may not be finite.
    facts.newest = isBad ? NaN : value;
    if (Number.isNaN(value)) continue;
    if (Number.isNaN(facts.largest) || Math.abs(value) > Math.abs(facts.largest)) {
      facts.largest = value;
      facts.at = heat.last[column]!;
    }
  }
  return facts;
}

export function HeatTable(props: { heat: Heat; only: string; onOpen: (target: string) => void }) {
  const { heat } = props;
  const rows = heat.targets.flatMap((target, row) => (matches(target, props.only) ? [rowFacts(heat, row)] : []));
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="Table of all rows">
      <table>
        <thead>
          <tr>
            <th>Target</th>
            <th class="num">Newest</th>
            <th class="num">Usual</th>
            <th class="num">Largest</th>
            <th class="num">at step</th>
            <th class="num">First NaN or Inf</th>
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.target}>
              <td>
                <button type="button" class="link" onClick={() => props.onOpen(row.target)}>
                  <Name>{row.target}</Name>
                </button>
              </td>
              <td class={`num ${Number.isNaN(row.newest) ? "is-bad" : ""}`}>{number(row.newest)}</td>
              <td class="num">{number(row.usual)}</td>
              <td class="num">{number(row.largest)}</td>
              <td class="num">{Number.isNaN(row.largest) ? "–" : whole(row.at)}</td>
              <td class={`num ${row.badAt === null ? "" : "is-bad"}`}>
                {row.badAt === null ? "–" : `step ${whole(row.badAt)}`}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
