/** Keys that work anywhere on the page. */

import { useEffect, useRef } from "preact/hooks";

/** What `?` shows; screens have keys of their own where something is chosen. */
export const KEYS: readonly (readonly [string, string])[] = [
  ["?", "these keys"],
  ["/", "search"],
  ["g r", "all runs"],
  ["1 – 8", "screens of a run, from left to right"],
  ["j k  ↓ ↑", "next, previous row of a list"],
  ["Enter", "open the row or the cell"],
  ["x", "choose a run for comparing"],
  ["← → ↑ ↓", "move in the heat map; pan a chart"],
  ["+ −", "zoom in, out"],
  ["Esc", "zoom out, close"],
  ["t", "light or dark"],
];

function isTyping(event: KeyboardEvent): boolean {
  const element = event.target as HTMLElement | null;
  return !!element?.closest("input, textarea, select, [contenteditable]");
}

/** Call `pressed` for keys that are not typed into something; it says whether the key was its own. */
export function useKeys(pressed: (key: string, event: KeyboardEvent) => boolean | void): void {
  const latest = useRef(pressed);
  latest.current = pressed;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
      if (latest.current(event.key, event)) event.preventDefault();
    };
    window.addEventListener("keydown", listen);
    return () => window.removeEventListener("keydown", listen);
  }, []);
}
