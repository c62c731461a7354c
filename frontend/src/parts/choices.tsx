/** Choices that several screens have: each writes the view into the address. */

import type { Quantity } from "../api";
import { go } from "../navigation";
import type { View } from "../view";
import { withinRun } from "../curves/pan-zoom";
import { Choice, Segments } from "./basics";

export function ScaleChoice(props: { view: View; label?: string }) {
  return (
    <Segments
      label={props.label ?? "Scale"}
      value={props.view.log ? "log" : "linear"}
      onChange={(scale) => go({ log: scale === "log", draw: [] })}
      options={[
        ["linear", "Linear"],
        ["log", "Log"],
      ]}
    />
  );
}

export function Smoothing(props: { view: View }) {
  return (
    <label class="slider">
      Smoothing
      <input
        type="range"
        min="0"
        max="0.99"
        step="0.01"
        value={props.view.smooth}
        onInput={(event) => go({ smooth: Number(event.currentTarget.value), draw: [] }, true)}
      />
      <output>{props.view.smooth ? props.view.smooth.toFixed(2) : "off"}</output>
    </label>
  );
}

/** Which tensor of the targets, and which number of it. */
export function QuantityChoice(props: { known: readonly Quantity[]; quantity: Quantity; statistic: string }) {
  const { known, quantity, statistic } = props;
  return (
    <>
      <Choice
        label="Quantity"
        value={quantity.name}
        onChange={(name) => go({ quantity: name, statistic: "", closed: [] })}
        options={known.map((each) => [each.name, each.name.replaceAll("_", " ")] as const)}
      />
      <Choice
        label="Statistic"
        value={statistic}
        onChange={(name) => go({ quantity: quantity.name, statistic: name })}
        options={quantity.statistics.map((name) => [name, name] as const)}
      />
    </>
  );
}

/** Shows a range of whole steps of a run with this last one; null: all. */
export function stepZoom(
  end: number | null,
): (first: number | null, last: number | null, isDragging?: boolean) => void {
  return (first, last, isDragging = false) => go(withinRun(first, last, end), isDragging);
}
