/** Parts that have a row each, at one step: the load of every expert, the attention of every head. */

import { useMemo, useState } from "preact/hooks";
import type { RunHome } from "../api";
import { RISING, css } from "../colors";
import { number, plural, whole } from "../format";
import type { Heat } from "../heat/folding";
import { go } from "../navigation";
import { useHeat } from "../server";
import { Card, Segments } from "./basics";

interface Kind {
  quantity: string;
  what: string;
  choice: string;
  part: string;
  /** What a cell shows. */
  note: string;
  /** The top of the colour scale; null: the largest value. */
  high: number | null;
}

const EXPERTS: readonly Kind[] = [
  {
    quantity: "expert",
    what: "load",
    choice: "Load",
    part: "expert",
    note: "tokens of each expert divided by its router's mean: 1 is balanced, 0 means no tokens",
    high: null,
  },
];
const HEADS: readonly Kind[] = [
  {
    quantity: "attention",
    what: "head_entropy",
    choice: "Entropy",
    part: "head",
    note: "entropy of each head relative to its maximum: at 0 one key takes all, at 1 there is no preference",
    high: 1,
  },
  {
    quantity: "attention",
    what: "max_logit",
    choice: "Largest logit",
    part: "head",
    note: "largest logit of each head",
    high: null,
  },
];

export function PartPictures(props: { home: RunHome }) {
  const has = (name: string) => props.home.quantities.some((quantity) => quantity.name === name);
  return (
    <>
      {has("expert") && <Picture run={props.home.run} title="Experts" kinds={EXPERTS} />}
      {has("attention") && <Picture run={props.home.run} title="Attention heads" kinds={HEADS} />}
    </>
  );
}

interface Cell {
  row: number;
  target: string;
}

/** Modules, and for each the cell of every part. */
function layersOf(heat: Heat, what: string): [string, (Cell | undefined)[]][] {
  const layers = new Map<string, (Cell | undefined)[]>();
  heat.targets.forEach((target, row) => {
    const at = target.lastIndexOf(`:${what}.`);
    const part = Number(target.slice(at + what.length + 2));
    if (at < 0 || !Number.isInteger(part)) return;
    const name = target.slice(0, at);
    const cells = layers.get(name) ?? [];
    cells[part] = { row, target };
    layers.set(name, cells);
  });
  return [...layers];
}

function Picture(props: { run: string; title: string; kinds: readonly Kind[] }) {
  const [choice, setChoice] = useState(props.kinds[0]!.what);
  const kind = props.kinds.find((one) => one.what === choice)!;
  const search = `re::${kind.what}\\.[0-9]+$`;
  const answer = useHeat("heat", {
    run: props.run,
    quantity: kind.quantity,
    statistic: "mean",
    rows: 5000,
    columns: 500,
    search,
  });
  const [chosen, setChosen] = useState<number | null>(null);
  const heat = answer.value?.head.search === search ? answer.value : null;
  const layers = useMemo(() => (heat ? layersOf(heat, kind.what) : []), [heat, kind.what]);
  if (!heat || !layers.length) return null;
  const column = Math.min(chosen ?? heat.columns - 1, heat.columns - 1);
  const valueOf = (cell: Cell) => heat.values[cell.row * heat.columns + column]!;
  const high = kind.high ?? heat.values.reduce((most, value) => (value > most ? value : most), 0);
  const widest = Math.max(...layers.map(([, cells]) => cells.length));
  const folded = heat.groups.some((size) => size > 1);
  const steps =
    heat.first[column] === heat.last[column]
      ? `step ${whole(heat.first[column])}`
      : `steps ${whole(heat.first[column])} to ${whole(heat.last[column])}`;
  return (
    <Card
      class="parts-card"
      label={props.title}
      title={
        <>
          {props.title} <small>{steps}</small>
        </>
      }
      side={
        <>
          {props.kinds.length > 1 && (
            <Segments
              label={`Number of each ${kind.part}`}
              value={choice}
              options={props.kinds.map((one) => [one.what, one.choice, one.note] as const)}
              onChange={setChoice}
            />
          )}
          <input
            type="range"
            aria-label={`Step of ${props.title.toLowerCase()}`}
            min={0}
            max={heat.columns - 1}
            value={column}
            onInput={(event) => setChosen(Number(event.currentTarget.value))}
          />
        </>
      }
    >
      <p class="parts-note">
        Each row is a module, each cell {kind.part === "expert" ? "an expert" : "a head"}: {kind.note}. The scale goes
        from 0 to {number(high, 3)}.
        {folded && ` There are more than 5,000 parts, so some cells stand for several and show the largest of them.`}
      </p>
      <div class="parts-scroll">
        <table aria-label={`${props.title}: ${kind.choice.toLowerCase()}`}>
          <thead>
            <tr>
              <th scope="col">{plural(layers.length, "module")}</th>
              {Array.from({ length: widest }, (_, part) => (
                <th key={part} scope="col" aria-label={`${kind.part} ${part}`}>
                  {part % 4 === 0 && part}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {layers.map(([name, cells]) => (
              <tr key={name}>
                <th scope="row">{name}</th>
                {Array.from({ length: widest }, (_, part) => {
                  const cell = cells[part];
                  if (!cell) return <td key={part} />;
                  const value = valueOf(cell);
                  const text = `${name}, ${kind.part} ${part}: ${Number.isFinite(value) ? number(value, 3) : "no number"}`;
                  return (
                    <td key={part} style={{ background: colour(value, high) }} title={text}>
                      <button
                        type="button"
                        aria-label={text}
                        onClick={() => go({ screen: "series", series: [`${kind.quantity}|${cell.target}|mean`] })}
                      />
                    </td>
                  );
                })}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

function colour(value: number, high: number): string {
  if (!Number.isFinite(value)) return "transparent";
  const share = high > 0 ? Math.min(Math.max(value / high, 0), 1) : 0;
  return css(RISING[Math.round(share * (RISING.length - 1))]!);
}
