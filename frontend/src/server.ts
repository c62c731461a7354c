/** Requests to the server or, in a report, to the data in the file. */

import { useCallback, useEffect, useState } from "preact/hooks";
import type { Answers, Refusal } from "./api";
import { decodeHeat, type Heat } from "./heat/folding";
import { createStore } from "./store";

export type Query = Record<string, string | number | null | undefined | readonly string[]>;

/** Where answers come from. */
export interface Source {
  json(page: string, query: Query, signal?: AbortSignal): Promise<unknown>;
  heat(page: string, query: Query, signal?: AbortSignal): Promise<Heat>;
  isReport: boolean;
}

export class ServerError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly key: string | null = null,
  ) {
    super(message);
  }
}

export const isGone = createStore(false);

export function address(page: string, query: Query): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (Array.isArray(value)) value.forEach((each) => words.append(name, each));
    else if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  }
  const text = words.toString();
  return `api/${page}${text ? `?${text}` : ""}`;
}

async function fetchPage(page: string, query: Query, signal?: AbortSignal): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address(page, query), { signal, credentials: "same-origin" });
  } catch (error) {
    if (signal?.aborted) throw error;
    noticeGone();
    throw new ServerError("The server does not respond.", 0);
  }
  isGone.set(false);
  if (response.ok) return response;
  const told = (await response.json().catch(() => ({}))) as Partial<Refusal>;
  throw new ServerError(
    told.error ?? `The server returned status ${response.status}.`,
    response.status,
    told.key ?? null,
  );
}

/** Change something: notes on runs, and the charts of the folder. */
export async function tell(page: "note" | "trash" | "charts", body: Record<string, unknown>): Promise<unknown> {
  const response = await fetch(`api/${page}`, {
    method: "POST",
    credentials: "same-origin",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  }).catch(() => {
    noticeGone();
    throw new ServerError("The server does not respond.", 0);
  });
  const told = (await response.json().catch(() => ({}))) as Partial<Refusal>;
  if (!response.ok)
    throw new ServerError(told.error ?? `The server returned status ${response.status}.`, response.status);
  return told;
}

let asking = 0;

/** Show that the server is gone, and ask again until it is back. */
export function noticeGone(): void {
  isGone.set(true);
  window.clearTimeout(asking);
  asking = window.setTimeout(() => void askAgain(), 2000);
}

export async function askAgain(): Promise<void> {
  if (!(await isThere())) return;
  isGone.set(false);
  window.dispatchEvent(new Event("server-back"));
}

/** A server that takes longer to say that it is up hangs: its connections may outlive it. */
const MOST_WAIT_MS = 15_000;

/** Whether the server responds; if not, a banner shows it. */
export async function isThere(): Promise<boolean> {
  const isUp = await fetch("healthz", { cache: "no-store", signal: AbortSignal.timeout(MOST_WAIT_MS) }).then(
    (response) => response.ok,
    () => false,
  );
  if (!isUp) noticeGone();
  return isUp;
}

export const network: Source = {
  isReport: false,
  json: async (page, query, signal) => (await fetchPage(page, query, signal)).json(),
  heat: async (page, query, signal) => decodeHeat(await (await fetchPage(page, query, signal)).arrayBuffer()),
};

let source: Source = network;

export function answerFrom(other: Source): void {
  source = other;
}

export function isReport(): boolean {
  return source.isReport;
}

export interface Answer<Value> {
  value: Value | null;
  error: ServerError | null;
  isLoading: boolean;
  /** The address of the value; an older value is shown while a new one loads. */
  of: string;
  again: () => void;
}

/** The answer of one page; repeats the request when the query changes or the server comes back. `null`: no request. */
export function useAnswer<Page extends keyof Answers>(page: Page, query: Query | null): Answer<Answers[Page]> {
  return useAsked(page, query, (signal) => source.json(page, query!, signal) as Promise<Answers[Page]>);
}

export function useHeat(page: string, query: Query | null): Answer<Heat> {
  return useAsked(page, query, (signal) => source.heat(page, query!, signal));
}

function useAsked<Value>(
  page: string,
  query: Query | null,
  ask: (signal: AbortSignal) => Promise<Value>,
): Answer<Value> {
  const wanted = query === null ? "" : address(page, query);
  const [round, setRound] = useState(0);
  const [state, setState] = useState<Omit<Answer<Value>, "again">>({
    value: null,
    error: null,
    isLoading: true,
    of: "",
  });
  const again = useCallback(() => setRound((last) => last + 1), []);
  useEffect(() => {
    window.addEventListener("server-back", again);
    return () => window.removeEventListener("server-back", again);
  }, [again]);
  useEffect(() => {
    if (!wanted) return;
    const stop = new AbortController();
    setState((last) => ({ ...last, isLoading: true }));
    ask(stop.signal).then(
      (value) => !stop.signal.aborted && setState({ value, error: null, isLoading: false, of: wanted }),
      (error: unknown) => {
        if (stop.signal.aborted) return;
        const told = error instanceof ServerError ? error : new ServerError(String(error), -1);
        // While the server is away, keep the last value.
        setState((last) => ({ ...last, value: told.status === 0 ? last.value : null, error: told, isLoading: false }));
      },
    );
    return () => stop.abort();
    // oxlint-disable-next-line react/exhaustive-deps -- the address says what `ask` asks for
  }, [wanted, round]);
  return { ...state, again };
}
