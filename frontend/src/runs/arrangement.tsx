/** The charts of a folder: which, in which order, and how each is drawn. Stored beside the runs, and in the address. */

import { useEffect, useState } from "preact/hooks";
import type { ChartArrangement, StoredCharts } from "../api";
import { withLook } from "../curves/look";
import { go, useView } from "../navigation";
import { ServerError, tell, useAnswer } from "../server";
import type { View } from "../view";

/** What the address says about charts, with the numbers that are shown. */
export function arrangementOf(view: View, numbers: readonly string[]): ChartArrangement {
  const { draw, by, along, best, log, smooth } = view;
  return { numbers: [...numbers], draw, by, along, best, log, smooth };
}

export function isSame(a: ChartArrangement, b: ChartArrangement): boolean {
  return JSON.stringify(arranged(a)) === JSON.stringify(arranged(b));
}

function arranged({ numbers, draw, by, along, best, log, smooth }: ChartArrangement): unknown[] {
  return [numbers, [...draw].sort(), by, along, best, log, smooth];
}

/** The list with one chart moved by some places. */
export function moved(numbers: readonly string[], number: string, by: number): string[] {
  const from = numbers.indexOf(number);
  const to = Math.min(numbers.length - 1, Math.max(0, from + by));
  const next = numbers.filter((each) => each !== number);
  next.splice(to, 0, number);
  return next;
}

/** The stored charts; an address that names none is given theirs. */
export function useStored(): { stored: ChartArrangement | null; isKnown: boolean; keep: (now: StoredCharts) => void } {
  const view = useView();
  const answer = useAnswer("charts", {});
  const [kept, keep] = useState<StoredCharts | null>(null);
  const stored = (kept ?? answer.value)?.arrangement ?? null;
  const isBare = !view.numbers.length;
  useEffect(() => {
    // What the address says already goes before: a group, or the axis.
    if (stored && isBare)
      go(
        {
          ...stored,
          numbers: [...stored.numbers],
          draw: [...stored.draw],
          smooth: stored.smooth ?? 0,
          by: view.by || stored.by,
          along: view.along || stored.along,
        },
        true,
      );
    // oxlint-disable-next-line react/exhaustive-deps -- once, when they are known
  }, [answer.value]);
  return { stored, isKnown: answer.value !== null || answer.error !== null, keep };
}

/** Stores the charts as they are for everyone who opens this folder. */
export function KeepCharts(props: {
  now: ChartArrangement;
  stored: ChartArrangement | null;
  onKept: (now: StoredCharts) => void;
}) {
  const { now, stored } = props;
  const [error, setError] = useState("");
  const isKept = stored !== null && isSame(now, stored);
  const keep = async () => {
    try {
      props.onKept((await tell("charts", { ...now })) as StoredCharts);
      setError("");
    } catch (reason) {
      setError(reason instanceof ServerError ? reason.message : String(reason));
    }
  };
  return (
    <>
      <button
        type="button"
        class="button"
        disabled={isKept}
        title="Store these charts beside the runs, for everyone who opens this folder"
        onClick={() => void keep()}
      >
        {isKept ? "Charts saved" : "Save charts"}
      </button>
      {error && (
        <small class="red-text" role="alert">
          {error}
        </small>
      )}
    </>
  );
}

/** Moves a chart among the others, or takes it away. */
export function PlaceControls(props: { number: string; numbers: readonly string[]; view: View }) {
  const { number, numbers, view } = props;
  const at = numbers.indexOf(number);
  const move = (by: number) => go({ numbers: moved(numbers, number, by) });
  return (
    <span class="chart-look">
      <button type="button" class="link" disabled={at <= 0} aria-label={`Move ${number} up`} onClick={() => move(-1)}>
        ←
      </button>
      <button
        type="button"
        class="link"
        disabled={at >= numbers.length - 1}
        aria-label={`Move ${number} down`}
        onClick={() => move(1)}
      >
        →
      </button>
      <button
        type="button"
        class="link"
        aria-label={`Remove ${number}`}
        onClick={() =>
          go({
            numbers: numbers.filter((each) => each !== number),
            draw: withLook(view, number, { log: view.log, smooth: view.smooth, wide: false }),
          })
        }
      >
        ×
      </button>
    </span>
  );
}
