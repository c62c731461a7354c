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

/** Change the view. `replace` leaves no entry to go back to: for sliders and dragging. */
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

/** The address of a changed view, for links that can be opened in a tab of their own. */
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

/** What stays when another run or screen is opened: nothing of the former place. */
const { quantity, statistic, rank, first, last, series, runs, only, closed, incident } = START;
export const CLEARED: Partial<View> = { quantity, statistic, rank, first, last, series, runs, only, closed, incident };

export function useView(): View {
  return useStore(view);
}
