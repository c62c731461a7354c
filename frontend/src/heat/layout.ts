/** The sizes of a heat map: its rows, the names beside them, and how much of it is seen at once. */

import type { Outline } from "./tree";

export interface Layout {
  lineHeight: number;
  gutterWidth: number;
  /** Of all cells. */
  width: number;
  height: number;
  /** What is seen of the height without scrolling. */
  seenHeight: number;
  isScrolled: boolean;
}

const TALLEST_ROW = 18;
/** The lowest row that has its name beside it, and how many of them a map may have. */
const NAMED_ROW = 11;
const MOST_NAMED = 400;
const SCROLLBAR = 12;
const AXIS = 40;

export function layOut(outline: Outline, outerWidth: number, windowHeight: number): Layout {
  const lines = outline.lines.length;
  const tallest = Math.max(320, Math.min(620, windowHeight - 330));
  const lineHeight = rowHeight(lines, tallest);
  const isNamed = lineHeight >= 10 || outline.lines.some((line) => line.folded);
  const gutterWidth = gutterFor(outerWidth, outline.depth, isNamed);
  const height = Math.max(1, lines * lineHeight);
  // Who scrolls the rows wants to see the steps below them all the while.
  const seenHeight = height <= 1.5 * tallest ? height : tallest - AXIS;
  const isScrolled = seenHeight < height;
  const width = Math.max(40, outerWidth - gutterWidth - 1 - (isScrolled ? SCROLLBAR : 0));
  return { lineHeight, gutterWidth, width, height, seenHeight, isScrolled };
}

/** As tall as fits the window; names are worth some scrolling, but not many windows full. */
function rowHeight(lines: number, tallest: number): number {
  const fitted = Math.min(TALLEST_ROW, tallest / Math.max(1, lines));
  if (fitted < NAMED_ROW && lines <= MOST_NAMED) return NAMED_ROW;
  return fitted >= 4 ? Math.floor(fitted) : fitted;
}

/** Room for the blocks of modules, and for names where rows are tall enough to have them. */
function gutterFor(width: number, depth: number, isNamed: boolean): number {
  const blocks = Math.min(depth, 4) * 18;
  if (!isNamed) return Math.max(18, Math.min(blocks, width * 0.2)) + 6;
  if (width < 560) return Math.min(104, Math.round(width * 0.3));
  return Math.min(300, 130 + blocks);
}
