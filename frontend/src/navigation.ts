/** The view of this tab, kept in its address. */

import { createStore, useStore } from "./store";
import { formatView, parseView, START, type View } from "./view";

export const view = createStore<View>(START);
let isInHash = false;

/** Start from the address. A file opened from disk may only change what is after the `#`. */
export function followAddress(hash = false): void {
  isInHash = hash;
  const read = () => view.set(parseView(hash ? location.hash.slice(1) : location.search));
  window.addEventListener(hash ? "hashchange" : "popstate", read);
  read();
}

/** Change the view. `replace` adds no history entry: for sliders and dragging. */
export function go(changes: Partial<View>, replace = false): void {
  const next = { ...view.get(), ...changes };
  const address = addressOf(next);
  if (address !== addressOf(view.get())) {
    if (replace) history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  }
  const isOther = next.screen !== view.get().screen || next.run !== view.get().run;
  view.set(next);
  if (isOther) window.scrollTo(0, 0);
}

function addressOf(next: View): string {
  const text = formatView(next);
  return isInHash ? `#${text.replace(/^\.\/|^\?/, "")}` : text;
}

/** The address of a changed view, for links that can be opened in a new tab. */
export function link(changes: Partial<View>): { href: string; onClick: (event: MouseEvent) => void } {
  return {
    href: addressOf({ ...view.get(), ...changes }),
    onClick(event) {
      if (event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
      event.preventDefault();
      go(changes);
    },
  };
}

const { list, find, which, columns, sort, where, by, tint, pins, hidden, chosen } = START;
const { numbers, best, along, draw, result, setting } = START;
const TABLE: Partial<View> = { list, find, which, columns, sort, where, by, tint, pins, hidden, chosen };
const LIST: Partial<View> = { ...TABLE, numbers, best, along, draw, result, setting };

/** The view after opening another run or screen: everything else is reset. */
const { quantity, statistic, rank, first, last, series, runs, only, closed, incident } = START;
const RUN: Partial<View> = { quantity, statistic, rank, first, last, series, runs, only, closed, incident };
export const CLEARED: Partial<View> = { ...RUN, ...LIST };

let lastList: Partial<View> = {};
view.follow(() => {
  const now = view.get();
  if (!now.run) lastList = Object.fromEntries(Object.keys(LIST).map((name) => [name, now[name as keyof View]]));
});

/** The list of runs as it was left. */
export function toList(): Partial<View> {
  return { ...CLEARED, ...lastList, run: "", screen: "home" };
}

export function useView(): View {
  return useStore(view);
}
