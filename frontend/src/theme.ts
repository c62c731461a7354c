/** Light or dark: the address, what was chosen here before, or the system, in this order. */

import { useEffect, useState } from "preact/hooks";
import { createStore, useStore } from "./store";
import { view } from "./navigation";

const KEPT = "vario-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

function chosen(): "light" | "dark" | "" {
  if (view.get().theme) return view.get().theme;
  try {
    const kept = localStorage.getItem(KEPT);
    return kept === "light" || kept === "dark" ? kept : "";
  } catch {
    return "";
  }
}

export const isDark = createStore(false);

export function followTheme(): void {
  const show = () => {
    const theme = chosen();
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    isDark.set(theme ? theme === "dark" : system.matches);
  };
  system.addEventListener("change", show);
  view.follow(show);
  show();
}

export function switchTheme(): void {
  const next = isDark.get() ? "light" : "dark";
  try {
    localStorage.setItem(KEPT, next);
  } catch {
    // A page opened from disk cannot store anything: the choice lasts as long as the tab.
  }
  document.documentElement.dataset.theme = next;
  isDark.set(next === "dark");
}

export function useDark(): boolean {
  return useStore(isDark);
}

/** A colour of the style sheet, for canvases. */
export function ink(name: string): string {
  const probe = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return resolve(probe);
}

let swatch: HTMLElement | null = null;

/** Canvases do not know `light-dark()`: let the browser compute the colour. */
function resolve(color: string): string {
  if (!swatch) {
    swatch = document.createElement("i");
    swatch.hidden = true;
    document.body.append(swatch);
  }
  swatch.style.color = "";
  swatch.style.color = color;
  return getComputedStyle(swatch).color;
}

/** The width of an element, kept up to date. */
export function useWidth(): [(element: HTMLElement | null) => void, number] {
  const [element, setElement] = useState<HTMLElement | null>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    if (!element) return;
    const watcher = new ResizeObserver(() => setWidth(element.clientWidth));
    watcher.observe(element);
    setWidth(element.clientWidth);
    return () => watcher.disconnect();
  }, [element]);
  return [setElement, width];
}
