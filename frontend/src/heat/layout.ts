/** The layout of a heat map: row heights, name column and visible height. */

import type { Outline } from "./tree";

export interface Layout {
  lineHeight: number;
  gutterWidth: number;
  /** The height of all cells. */
  width: number;
  height: number;
  /** The height visible without scrolling. */
  seenHeight: number;
  isScrolled: boolean;
}

const TALLEST_ROW = 18;
/** The smallest row height with a name beside it, and the most such rows. */
const NAMED_ROW = 11;
const MOST_NAMED = 400;
const SCROLLBAR = 12;
const AXIS = 40;

export function layOut(outline: Outline, outerWidth: number, windowHeight: number): Layout {
  const lines = outline.lines.length;
  const tallest = Math.max(320, Math.min(620, windowHeight - 330));
  const lineHeight = rowHeight(lines, tallest);
  const gutterWidth = gutterFor(outerWidth, outline.depth);
  const height = Math.max(1, lines * lineHeight);
  // Keep the step axis visible while the rows scroll.
  const seenHeight = height <= 1.5 * tallest ? height : tallest - AXIS;
  const isScrolled = seenHeight < height;
  const width = Math.max(40, outerWidth - gutterWidth - 1 - (isScrolled ? SCROLLBAR : 0));
  return { lineHeight, gutterWidth, width, height, seenHeight, isScrolled };
}

/** As tall as the window; names justify some scrolling, but not many pages. */
function rowHeight(lines: number, tallest: number): number {
  const fitted = Math.min(TALLEST_ROW, tallest / Math.max(1, lines));
  if (fitted < NAMED_ROW && lines <= MOST_NAMED) return NAMED_ROW;
  return fitted >= 4 ? Math.floor(fitted) : fitted;
}

/** The width for module blocks and names; of thin rows every n-th has one. */
function gutterFor(width: number, depth: number): number {
  const blocks = Math.min(depth, 4) * 18;
  if (width < 560) return Math.min(104, Math.round(width * 0.3));
  return Math.min(300, 130 + blocks);
}
