/** What happens while one looks: one stream of events for the whole tab. */

import { useEffect, useRef } from "preact/hooks";
import type { Incident, Maybe, RunRow } from "./answers";
import type { NewColumns } from "./heat/folding";
import { address, isReport, noticeGone, type Query } from "./server";
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

export interface Heard {
  progress?: (body: Progress) => void;
  heat?: (body: NewColumns) => void;
  points?: (body: NewPoints) => void;
  incident?: (body: Incident) => void;
  runs?: (body: { runs: RunRow[] } | RunRow[]) => void;
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
    let stream: EventSource;
    const open = () => {
      stream = new EventSource(address("live", { ...asked, cursor: cursor.current || asked.cursor }));
      stream.onopen = () => isLive.set(true);
      stream.onerror = () => {
        isLive.set(false);
        if (stream.readyState !== EventSource.CLOSED) return;
        noticeGone();
        retry = window.setTimeout(open, 3000);
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
