/** What happens while one looks: one stream of events for the whole tab. */

import { useEffect, useRef } from "preact/hooks";
import type { Incident, Maybe, RunRow } from "./answers";
import type { NewColumns } from "./heat/folding";
import { address, askAgain, isReport, isThere, type Query } from "./server";
import { createStore } from "./store";

export interface Progress {
  step: Maybe;
  state: string;
  progress: Maybe;
  eta_seconds: Maybe;
  steps_per_second: Maybe;
  vital: { name: string; value: Maybe }[];
}

export interface NewPoints {
  curves: {
    quantity: string;
    target: string;
    statistic: string;
    rank: number | string;
    steps: number[];
    values: Maybe[];
    bad?: (boolean | number)[];
    times?: Maybe[];
  }[];
}

export interface NewRows {
  /** Rows that are new or have changed. */
  runs: RunRow[];
  /** Runs that are not there any more. */
  gone: string[];
  /** Whether these are all there are: the server did not know what was seen before. */
  is_whole: boolean;
}

export interface Heard {
  progress?: (body: Progress) => void;
  heat?: (body: NewColumns) => void;
  points?: (body: NewPoints) => void;
  incident?: (body: Incident) => void;
  runs?: (body: NewRows) => void;
  /** Too much was missed, or the run began anew: ask for everything again. */
  reset?: () => void;
  bye?: () => void;
}

/** Whether events are coming in. */
export const isLive = createStore(false);

/** What the open screen wants to hear besides progress; the run page opens the stream. */
export const wanted = createStore<Query>({});

type Listener = Heard;
const listeners = new Set<Listener>();

/** Hear events while a component is shown. */
export function useHeard(heard: Heard): void {
  const latest = useRef(heard);
  latest.current = heard;
  useEffect(() => {
    const names = ["progress", "heat", "points", "incident", "runs", "reset", "bye"] as const;
    const listener = Object.fromEntries(
      names.map((name) => [name, (body: never) => latest.current[name]?.(body)]),
    ) as Listener;
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
}

/** Ask for events of a screen as long as it is shown. */
export function useWanted(query: Query): void {
  const text = JSON.stringify(query);
  useEffect(() => {
    wanted.set(query);
    return () => wanted.set({});
  }, [text]);
}

const RETRY_MS = 3000;
const MOST_RETRY_MS = 60_000;

/** Keep one stream open; `null` closes it. */
export function useStream(query: Query | null): void {
  const cursor = useRef("");
  const run = useRef<unknown>(null);
  const text = query === null || isReport() ? "" : JSON.stringify(query);
  useEffect(() => {
    if (!text) return;
    const asked = JSON.parse(text) as Query;
    if (run.current !== asked.run) {
      run.current = asked.run;
      cursor.current = "";
    }
    let retry = 0;
    let pause = RETRY_MS;
    let stream: EventSource;
    const open = () => {
      stream = new EventSource(address("live", { ...asked, cursor: cursor.current || asked.cursor }));
      stream.onopen = () => {
        pause = RETRY_MS;
        isLive.set(true);
      };
      stream.onerror = () => {
        isLive.set(false);
        if (stream.readyState !== EventSource.CLOSED) return void isThere();
        // It refuses, and whatever the page asks for says why.
        void askAgain();
        retry = window.setTimeout(open, pause);
        pause = Math.min(2 * pause, MOST_RETRY_MS);
      };
      for (const name of ["progress", "heat", "points", "incident", "runs", "reset"] as const)
        stream.addEventListener(name, (event) => {
          if (event.lastEventId) cursor.current = event.lastEventId;
          const body = JSON.parse(event.data as string) as never;
          listeners.forEach((listener) => listener[name]?.(body));
        });
      stream.addEventListener("bye", () => {
        stream.close();
        isLive.set(false);
        listeners.forEach((listener) => listener.bye?.());
      });
    };
    open();
    return () => {
      window.clearTimeout(retry);
      stream.close();
      isLive.set(false);
    };
  }, [text]);
}
