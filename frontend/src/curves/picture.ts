import type uPlot from "uplot";
import { ink } from "../theme";

/** The chart as a file, on the page's own background. */
export function savePicture(u: uPlot, title: string): void {
  const from = u.ctx.canvas;
  const density = devicePixelRatio || 1;
  const canvas = document.createElement("canvas");
  canvas.width = from.width;
  canvas.height = from.height + 26 * density;
  const context = canvas.getContext("2d")!;
  context.fillStyle = ink("card");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = ink("ink");
  context.font = `${13 * density}px system-ui, sans-serif`;
  context.fillText(title, 10 * density, 18 * density);
  context.drawImage(from, 0, 26 * density);
  canvas.toBlob((blob) => {
    if (!blob) return;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = `${title.replace(/[^\w.-]+/g, "_")}.png`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  });
}
