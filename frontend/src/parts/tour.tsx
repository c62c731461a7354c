/** A tour for the first visit: four marks that explain the home screen of a run, until they are dismissed. */

import { useEffect } from "preact/hooks";
import { useKeys } from "../keys";
import { isReport } from "../server";
import { createStore, useStore } from "../store";

const KEPT = "vario-tour";

interface Mark {
  /** What it marks, the first that is there. */
  at: string;
  title: string;
  text: string;
}

const MARKS: readonly Mark[] = [
  { at: ".run-head", title: "Progress", text: "Is it still training, how far along is it, and how fast?" },
  {
    at: ".cause, .tabs",
    title: "What broke first",
    text: "The most urgent alert, its likely cause and the next step. Alerts lists all of them.",
  },
  { at: ".vitals", title: "Vital signs", text: "The last loss and other numbers. Click one to see its curve." },
  {
    at: ".heat-card",
    title: "Every layer over all steps",
    text: "Bright is large, pink is NaN or Inf. Point at a cell for its number, click a row for its curve, drag to zoom.",
  },
];

function isDone(): boolean {
  try {
    return localStorage.getItem(KEPT) !== null;
  } catch {
    return true;
  }
}

const isOver = createStore(isDone());

function finish(): void {
  try {
    localStorage.setItem(KEPT, "seen");
  } catch {
    // A browser that keeps nothing shows it once more.
  }
  isOver.set(true);
}

/** Show it again, wherever it belongs. */
export function showTour(): void {
  isOver.set(false);
  isAsked.set(true);
}

const isAsked = createStore(false);

/** Whether a command line is that of `vario demo`. */
export function isDemo(command: string): boolean {
  return /(^|[/\\])(vario|__main__\.py) demo\b/.test(command);
}

/** On the home screen of the demo: the parts themselves are marked. */
export function HomeTour(props: { command: string; parts: string }) {
  const over = useStore(isOver);
  const asked = useStore(isAsked);
  const isShown = !over && !isReport() && (asked || isDemo(props.command));
  useEffect(() => {
    if (!isShown) return;
    const marked = MARKS.map(({ at }, nth) => {
      const part = at
        .split(", ")
        .map((each) => document.querySelector(each))
        .find(Boolean);
      part?.setAttribute("data-mark", String(nth + 1));
      return part;
    });
    return () => marked.forEach((part) => part?.removeAttribute("data-mark"));
    // `parts` says which parts there are.
  }, [isShown, props.parts]);
  return isShown ? <Explained /> : null;
}

/** In an empty folder: a sketch of what the home screen of a run will show. */
export function SketchTour() {
  const over = useStore(isOver);
  if (over) return null;
  return (
    <>
      <div class="tour-sketch" aria-hidden="true">
        {MARKS.map((mark, nth) => (
          <div key={mark.title} data-mark={nth + 1} />
        ))}
      </div>
      <Explained />
    </>
  );
}

function Explained() {
  useKeys((key) => key === "Escape" && (finish(), true));
  return (
    <aside class="card tour" aria-label="Tour of the home screen">
      <ol>
        {MARKS.map((mark, nth) => (
          <li key={mark.title}>
            <span class="tour-mark" aria-hidden="true">
              {nth + 1}
            </span>
            <span>
              <b>{mark.title}.</b> {mark.text}
            </span>
          </li>
        ))}
      </ol>
      <button type="button" class="button" onClick={finish}>
        Got it
      </button>
    </aside>
  );
}
