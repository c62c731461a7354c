/** Drawing a grid of cells onto a canvas. */

import { BAD, css, NO_SIZE_COLOUR, type Rgb } from "../colors";
import { foldColumns, foldRows, NO_SIZE, NOT_FINITE, RECORDED, type Grid } from "./folding";
import { position, type Range } from "./range";

export interface Picture {
  width: number;
  height: number;
  /** Device pixels for each pixel of the page. */
  density: number;
  scale: readonly Rgb[];
  range: Range;
}

/** Rows without a size step back. */
const NO_SIZE_ALPHA = 90;

/** Paint all cells. Where there are more cells than pixels, cells are folded first, so that no spike is dropped. */
export function paint(canvas: HTMLCanvasElement, grid: Grid, picture: Picture): void {
  const { width, height, density } = picture;
  canvas.width = Math.max(1, Math.round(width * density));
  canvas.height = Math.max(1, Math.round(height * density));
  const context = canvas.getContext("2d");
  if (!context || !grid.rows || !grid.columns) return;
  const shown = fit(grid, Math.floor(height), Math.floor(width));
  context.imageSmoothingEnabled = false;
  context.drawImage(cells(shown, picture), 0, 0, canvas.width, canvas.height);
  context.setTransform(density, 0, 0, density, 0, 0);
  hatch(context, shown, picture);
}

/** At most one row and one column for each pixel. */
export function fit(grid: Grid, mostRows: number, mostColumns: number): Grid {
  let shown = foldColumns(grid, Math.max(1, mostColumns));
  const rows = Math.max(1, mostRows);
  if (shown.rows > rows) {
    const bounds = Array.from({ length: rows + 1 }, (_, row) => Math.floor((row * grid.rows) / rows));
    shown = foldRows(
      shown,
      bounds.slice(0, -1).map((from, row) => [from, bounds[row + 1]!] as const),
    );
  }
  return shown;
}

function cells(grid: Grid, picture: Picture): HTMLCanvasElement {
  const image = new ImageData(grid.columns, grid.rows);
  const pixels = new Uint32Array(image.data.buffer);
  const inks = packed(picture.scale);
  const top = inks.length - 1;
  const plain = packed([NO_SIZE_COLOUR], NO_SIZE_ALPHA)[0]!;
  for (let cell = 0; cell < grid.values.length; cell++) {
    const flags = grid.flags[cell]!;
    const value = grid.values[cell]!;
    if (!(flags & RECORDED)) continue;
    if (flags & NO_SIZE) pixels[cell] = plain;
    if (flags & NO_SIZE || Number.isNaN(value)) continue;
    pixels[cell] = inks[Math.round(position(value, picture.range) * top)]!;
  }
  const small = document.createElement("canvas");
  small.width = grid.columns;
  small.height = grid.rows;
  small.getContext("2d")?.putImageData(image, 0, 0);
  return small;
}

/** Colours as the four bytes of a pixel, in the order this machine has them in memory. */
function packed(scale: readonly Rgb[], alpha = 255): Uint32Array {
  return new Uint32Array(Uint8Array.from(scale.flatMap(([red, green, blue]) => [red, green, blue, alpha])).buffer);
}

/** Draw NaN and Inf on top: at least three pixels, in their own colour and hatched, so that they are always visible. */
function hatch(context: CanvasRenderingContext2D, grid: Grid, picture: Picture): void {
  const wide = picture.width / grid.columns;
  const high = picture.height / grid.rows;
  const pattern = context.createPattern(stripes(), "repeat");
  // Neighbouring cells are hatched as a whole, however narrow their cells are.
  for (let row = 0; row < grid.rows; row++) {
    let column = 0;
    while (column < grid.columns) {
      if (!(grid.flags[row * grid.columns + column]! & NOT_FINITE)) {
        column++;
        continue;
      }
      const from = column;
      while (column < grid.columns && grid.flags[row * grid.columns + column]! & NOT_FINITE) column++;
      const width = Math.max(3, (column - from) * wide);
      const height = Math.max(3, high);
      context.fillStyle = width >= 5 && height >= 5 && pattern ? pattern : css(BAD);
      context.fillRect(from * wide, row * high - Math.max(0, height - high) / 2, width, height);
    }
  }
}

let made: HTMLCanvasElement | null = null;

function stripes(): HTMLCanvasElement {
  if (made) return made;
  made = document.createElement("canvas");
  made.width = made.height = 6;
  const context = made.getContext("2d")!;
  context.fillStyle = css(BAD);
  context.fillRect(0, 0, 6, 6);
  context.strokeStyle = "rgb(255 255 255 / 85%)";
  context.lineWidth = 1.2;
  for (const shift of [-6, 0, 6]) {
    context.beginPath();
    context.moveTo(shift, 6);
    context.lineTo(shift + 6, 0);
    context.stroke();
  }
  return made;
}
