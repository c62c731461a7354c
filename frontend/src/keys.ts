/** Keys that work anywhere on the page. */

import { useLayoutEffect, useRef } from "preact/hooks";

/** What `?` shows; screens have further keys. */
export const KEYS: readonly (readonly [string, string])[] = [
  ["?", "show these keys"],
  ["/", "search"],
  ["g r", "list of runs"],
  ["1 – 8", "screens of a run"],
  ["j k  ↓ ↑", "next or previous row"],
  ["Enter", "open the row or cell"],
  ["x  p  h", "select, pin or hide a run"],
  ["← → ↑ ↓", "move in the heat map, pan a chart"],
  ["+ −", "zoom in or out"],
  ["Esc", "zoom out or close"],
  ["t", "light or dark colours"],
];

function isTyping(event: KeyboardEvent): boolean {
  const element = event.target as HTMLElement | null;
  // A checkbox and a slider keep the focus after a click, and take no letters.
  const field = element?.closest(
    "input:not([type=checkbox]):not([type=radio]):not([type=range]), textarea, select, [contenteditable]",
  );
  // An arrow may have left the field just now.
  return !!field && field === document.activeElement;
}

/** Call `pressed` for keys that are not typed into a field; it returns whether it handled the key. */
export function useKeys(pressed: (key: string, event: KeyboardEvent) => boolean | void): void {
  const latest = useRef(pressed);
  latest.current = pressed;
  // An effect after painting would miss keys pressed as soon as the rows are there.
  useLayoutEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event)) return;
      if (latest.current(event.key, event)) event.preventDefault();
    };
    window.addEventListener("keydown", listen);
    return () => window.removeEventListener("keydown", listen);
  }, []);
}
