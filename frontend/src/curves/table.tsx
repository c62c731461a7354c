/** The points of a chart as a table. */

import { number, whole } from "../format";
import type { Line } from "./lines";

const MOST_ROWS = 500;

export function CurveTable(props: { lines: readonly Line[] }) {
  const steps = [...new Set(props.lines.flatMap((line) => line.curve.steps))].sort((a, b) => b - a).slice(0, MOST_ROWS);
  const places = props.lines.map((line) => new Map(line.curve.steps.map((step, index) => [step, index])));
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="Table of points, newest first">
      <table>
        <thead>
          <tr>
            <th class="num">Step</th>
            {props.lines.map((line) => (
              <th key={line.key} class="num">
                {line.label}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {steps.map((step) => (
            <tr key={step}>
              <td class="num">{whole(step)}</td>
              {props.lines.map((line, index) => {
                const at = places[index]!.get(step);
                const isBad = at !== undefined && Boolean(line.curve.bad[at]);
                const value = at === undefined ? null : line.curve.last[at];
                return (
                  <td key={line.key} class={`num ${isBad ? "is-bad" : ""}`}>
                    {value === null || value === undefined ? (isBad ? "NaN or Inf" : "–") : number(value, 6)}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
