/** The cells of a heat map, painted again whenever they or their sizes change. */

import { useEffect, useRef } from "preact/hooks";
import type { Rgb } from "../colors";
import type { Layout } from "./layout";
import { paint } from "./paint";
import type { Shape } from "./shape";

export function Cells(props: { shape: Shape; layout: Layout; scale: readonly Rgb[]; isMeasured: boolean }) {
  const { shape, scale, isMeasured } = props;
  const { width, height } = props.layout;
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    if (canvas.current && isMeasured)
      paint(canvas.current, shape.colored, {
        width,
        height,
        density: window.devicePixelRatio || 1,
        scale,
        range: shape.range,
      });
  }, [shape, width, height, scale, isMeasured]);
  return <canvas ref={canvas} style={{ width: `${width}px`, height: `${height}px` }} aria-hidden="true" />;
}
