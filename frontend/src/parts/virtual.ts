/** Lists of any length: only rows near the window are on the page. */

import { useEffect, useRef, useState } from "preact/hooks";

export interface VisibleRows {
  first: number;
  last: number;
}

/** Which rows of fixed height to render, from the page's scroll position. */
export function useVisibleRows(rows: number, height: number): [VisibleRows, preact.RefObject<HTMLDivElement | null>] {
  const box = useRef<HTMLDivElement>(null);
  const [visible, setVisible] = useState<VisibleRows>({ first: 0, last: 40 });
  useEffect(() => {
    const look = () => {
      const top = box.current?.getBoundingClientRect().top ?? 0;
      const first = Math.max(0, Math.floor(-top / height) - 10);
      const last = Math.min(rows, Math.ceil((window.innerHeight - top) / height) + 10);
      setVisible((was) => (was.first === first && was.last === last ? was : { first, last }));
    };
    look();
    window.addEventListener("scroll", look, { passive: true });
    window.addEventListener("resize", look);
    return () => {
      window.removeEventListener("scroll", look);
      window.removeEventListener("resize", look);
    };
  }, [rows, height]);
  return [visible, box];
}

/** Scroll a row of fixed height into the window, unless it is there. */
export function scrollToRow(box: HTMLElement | null, row: number, height: number): void {
  const top = (box?.getBoundingClientRect().top ?? 0) + row * height;
  if (top < 110 || top > window.innerHeight - height - 20) window.scrollBy(0, top - window.innerHeight / 2);
}

/** The chosen row of a list, moved with j, k and arrows. */
export function nextRow(key: string, current: number, rows: number): number | null {
  if (!rows) return null;
  if (key === "j" || key === "ArrowDown") return Math.min(rows - 1, current + 1);
  if (key === "k" || key === "ArrowUp") return Math.max(0, current - 1);
  if (key === "Home") return 0;
  if (key === "End") return rows - 1;
  return null;
}
