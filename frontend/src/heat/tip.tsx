/** The tooltip of a cell. */

import { number, plural, steps } from "../format";
import { NO_SIZE, NOT_FINITE, RECORDED, type Heat } from "./folding";
import { rowMiddle } from "./range";
import type { Shape } from "./shape";
import { splitKind } from "./tree";

/** Why a row is grey. */
const NOTES: Record<string, string> = {
  indices: "token ids, not magnitudes",
  mask: "a mask: -inf is intended",
};

export interface Cell {
  line: number;
  column: number;
}

export interface CellText {
  name: string;
  when: string;
  value: string;
  isBad: boolean;
  note: string;
}

/** The text of a cell. */
export function describe(cell: Cell, heat: Heat, shape: Shape): CellText | null {
  const line = shape.outline.lines[cell.line];
  if (!line || cell.column < 0 || cell.column >= heat.columns) return null;
  const at = cell.line * heat.columns + cell.column;
  const flags = shape.plain.flags[at]!;
  const value = shape.plain.values[at]!;
  const target = heat.targets[shape.kept[line.from]!]!;
  const num = shape.kept.slice(line.from, line.to).reduce((sum, row) => sum + heat.groups[row]!, 0);
  const first = heat.first[cell.column]!;
  const last = heat.last[cell.column]!;
  const isBad = (flags & NOT_FINITE) !== 0;
  const usual = rowMiddle(shape.plain.values, cell.line, heat.columns);
  const notes: string[] = [];
  if (flags & NO_SIZE) notes.push(NOTES[heat.head.kinds?.[shape.kept[line.from]!] ?? ""] ?? "no sizes");
  else if (heat.head.difference === "ratio" && !Number.isNaN(value)) notes.push("second run relative to the first");
  else if (!heat.head.difference && Number.isFinite(usual) && usual > 0 && !Number.isNaN(value)) {
    const times = Math.abs(value) / usual;
    notes.push(`usual ${number(usual, 3)}${times > 1.5 || times < 0.67 ? `, here ×${number(times, 2)}` : ""}`);
  }
  if (num > 1) notes.push(`largest of ${plural(num, "target")}`);
  else if (first !== last && flags & RECORDED) notes.push("largest in these steps");
  return {
    name: line.folded ? splitKind(line.folded.name).join(".*") : num > 1 ? `${target} …` : target,
    when: steps(first, last),
    value: !(flags & RECORDED)
      ? "nothing recorded"
      : Number.isNaN(value)
        ? isBad
          ? "NaN or Inf"
          : "–"
        : heat.head.difference === "ratio"
          ? `×${number(10 ** value)}`
          : number(value),
    isBad,
    note: notes.join(" · "),
  };
}

export function Tip(props: { text: CellText; x: number; y: number; width: number; hint: string }) {
  const { text, x, y, width } = props;
  const isLeft = x > width / 2;
  return (
    <div
      class="tip"
      role="tooltip"
      style={{ top: `${y + 14}px`, [isLeft ? "right" : "left"]: `${isLeft ? width - x + 12 : x + 14}px` }}
    >
      <b>{text.name}</b>
      <div class="tip-value">
        <span class={text.isBad ? "is-bad" : ""}>{text.value}</span>
        <small>{text.when}</small>
      </div>
      {text.isBad && text.value !== "NaN or Inf" && <div class="is-bad">Contains NaN or Inf</div>}
      {text.note && <div class="tip-note">{text.note}</div>}
      <div class="tip-hint">{props.hint}</div>
    </div>
  );
}
