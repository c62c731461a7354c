/** One tensor's distribution over powers of two, as a picture: a column per recorded step, a row per power of two. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { DistributionPicture } from "../api";
import { RISING } from "../colors";
import { number, whole } from "../format";
import { useAnswer } from "../server";
import { Card, Waiting } from "./basics";

/** Exponents of the smallest normal and the smallest number of formats: below, digits are lost; below, all is. */
const LIMITS: readonly (readonly [name: string, exponent: number])[] = [
  ["fp16 and fp8 e5m2 lose digits below", -14],
  ["fp16 ends", -24],
  ["fp8 e4m3 loses digits below", -6],
  ["fp8 e4m3 ends", -9],
  ["fp8 e5m2 ends", -16],
];
const LABELS = 6;
/** The share at which the colour is the brightest: few distributions have half of their elements in one row. */
const BRIGHTEST = 0.4;

export function Ridge(props: { run: string; target: string; quantity: string }) {
  const answer = useAnswer("distribution", { run: props.run, target: props.target, quantity: props.quantity });
  const found = answer.value;
  return (
    <Card
      title={
        <>
          {props.target} <small>{props.quantity}</small>
        </>
      }
      side={<small>share of all elements by magnitude</small>}
    >
      {found ? <Picture found={found} /> : <Waiting answer={answer} what="distribution" />}
    </Card>
  );
}

function Picture(props: { found: DistributionPicture }) {
  const { found } = props;
  const [told, tell] = useState<string | null>(null);
  const rows = found.exponents.length;
  const columns = found.steps.length;
  if (!rows || !columns) return <p>All elements are zero, NaN or infinite.</p>;
  const lowest = found.exponents[0]!;
  /** How far from the top a power of two is, as a percentage. */
  const top = (exponent: number) => (100 * (lowest + rows - exponent)) / rows;
  const gap = Math.max(1, Math.ceil(rows / LABELS));
  const labels = found.exponents.filter((exponent) => (exponent - lowest) % gap === 0);
  const limits = LIMITS.filter(([, exponent]) => exponent > lowest && exponent < lowest + rows);
  const hover = (event: MouseEvent) => {
    const box = (event.currentTarget as HTMLElement).getBoundingClientRect();
    const column = Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns));
    const row = rows - 1 - Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows));
    tell(describe(found, column, row));
  };
  return (
    <>
      <div class="ridge">
        <div class="ridge-rows" aria-hidden="true">
          {labels.map((exponent) => (
            <span key={exponent} style={{ top: `${top(exponent)}%` }}>
              2^{exponent}
            </span>
          ))}
        </div>
        <div class="ridge-box" onMouseMove={hover} onMouseLeave={() => tell(null)}>
          <Heat found={found} label={summary(found)} />
          {limits.map(([name, exponent]) => (
            <div
              key={name}
              class={`ridge-limit ${name.endsWith("below") ? "is-left" : ""}`}
              style={{ top: `${top(exponent)}%` }}
            >
              <small>{name}</small>
            </div>
          ))}
        </div>
        <div class="ridge-steps">
          <span>step {whole(found.steps[0])}</span>
          {columns > 1 && <span>step {whole(found.steps[columns - 1])}</span>}
        </div>
      </div>
      <p class="ridge-told">{told ?? summary(found)}</p>
    </>
  );
}

function Heat(props: { found: DistributionPicture; label: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { found } = props;
  useEffect(() => {
    const rows = found.exponents.length;
    const columns = found.steps.length;
    const context = canvas.current?.getContext("2d");
    if (!context) return;
    const image = context.createImageData(columns, rows);
    for (let column = 0; column < columns; column++)
      for (let row = 0; row < rows; row++) {
        const share = found.shares[column]![row] ?? 0;
        // Square roots: a hundredth of the elements is still seen.
        const shade = Math.min(RISING.length - 1, Math.round(Math.sqrt(share / BRIGHTEST) * (RISING.length - 1)));
        const colour = RISING[share > 0 ? Math.max(shade, 12) : 0]!;
        const at = 4 * ((rows - 1 - row) * columns + column);
        image.data.set([...colour, 255], at);
      }
    context.putImageData(image, 0, 0);
  }, [found]);
  return (
    <canvas
      ref={canvas}
      width={found.steps.length}
      height={found.exponents.length}
      role="img"
      aria-label={props.label}
    />
  );
}

function describe(found: DistributionPicture, column: number, row: number): string {
  const exponent = found.exponents[row]!;
  const share = found.shares[column]![row] ?? 0;
  return `Step ${whole(found.steps[column])}: ${number(100 * share, 3)} % of the elements are from 2^${exponent} to 2^${
    exponent + 1
  } in magnitude.`;
}

/** The latest step in words: the row with most elements, zeros, and what is not finite. */
function summary(found: DistributionPicture): string {
  const last = found.steps.length - 1;
  const shares = found.shares[last] ?? [];
  const most = shares.reduce<number>((best, share, row) => ((share ?? 0) > (shares[best] ?? 0) ? row : best), 0);
  const zeros = found.zeros[last] ?? 0;
  const bad = found.bad[last] ?? 0;
  return [
    describe(found, last, most),
    ...(zeros > 0 ? [`${number(100 * zeros, 3)} % are zero.`] : []),
    ...(bad > 0 ? [`${whole(bad)} are NaN or Inf.`] : []),
  ].join(" ");
}
