/** Live updates: one event stream for the whole tab. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { Bye, LiveEvents } from "./api";
import { address, askAgain, isReport, isThere, type Query } from "./server";
import { createStore } from "./store";

/** What to do with each event. */
export type Heard = { [Name in keyof LiveEvents]?: (body: NonNullable<LiveEvents[Name]>) => void };

/** Whether events are arriving. */
export const isLive = createStore(false);

/** What the open screen subscribes to besides progress; the run page opens the stream. */
export const wanted = createStore<Query>({});

type Listener = Heard;
const listeners = new Set<Listener>();

/** Listen to events while a component is mounted. */
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

/** Events kept for answers that are on their way: more than a slow answer takes. */
const MOST_RECENT = 64;

/**
 * An answer that grows with live events. An answer may be older than events that arrived before it: those are added to
 * it once more, if they are about the same `subject`.
 */
export function useGrowing<Value extends object, Name extends "heat" | "points", News>(
  answer: Value | null,
  name: Name,
  subject: string,
  read: (body: NonNullable<LiveEvents[Name]>) => News,
  grow: (value: Value, news: News) => Value,
): Value | null {
  const [value, setValue] = useState(answer);
  const recent = useRef<{ subject: string; news: News }[]>([]);
  useEffect(() => {
    const missed = recent.current.filter((each) => each.subject === subject);
    setValue(answer && missed.reduce<Value>((last, each) => grow(last, each.news), answer));
    // oxlint-disable-next-line react/exhaustive-deps -- only a new answer starts over
  }, [answer]);
  const hear = (body: NonNullable<LiveEvents[Name]>) => {
    const news = read(body);
    recent.current = [...recent.current.slice(1 - MOST_RECENT), { subject, news }];
    setValue((last) => last && grow(last, news));
  };
  useHeard({ [name]: hear, reset: () => void (recent.current = []) });
  return value;
}

/** Subscribe to a screen's events while it is mounted. */
export function useWanted(query: Query): void {
  const text = JSON.stringify(query);
  useEffect(() => {
    wanted.set(query);
    return () => wanted.set({});
    // oxlint-disable-next-line react/exhaustive-deps -- a query with the same words is the same query
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
      stream.addEventListener("open", () => {
        pause = RETRY_MS;
        isLive.set(true);
      });
      stream.addEventListener("error", () => {
        isLive.set(false);
        if (stream.readyState !== EventSource.CLOSED) return void isThere();
        // The server refuses; the page's other requests show why.
        void askAgain();
        retry = window.setTimeout(open, pause);
        pause = Math.min(2 * pause, MOST_RETRY_MS);
      });
      for (const name of ["progress", "heat", "points", "incident", "runs", "reset"] as const)
        stream.addEventListener(name, (event) => {
          if (event.lastEventId) cursor.current = event.lastEventId;
          const body = JSON.parse(event.data as string) as never;
          listeners.forEach((listener) => listener[name]?.(body));
        });
      stream.addEventListener("bye", (event) => {
        stream.close();
        isLive.set(false);
        const body = JSON.parse(event.data as string) as Bye;
        listeners.forEach((listener) => listener.bye?.(body));
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
