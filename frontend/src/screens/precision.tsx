/** The precision screen: what lower precisions would lose, one tensor's distribution over steps, and channels. */

import { useState } from "preact/hooks";
import type { FormatLoss, Range, RunHome, TensorChannels, TensorPrecision } from "../api";
import { Card, Empty, Search, Waiting } from "../parts/basics";
import { Ridge } from "../parts/ridge";
import { go, useView } from "../navigation";
import { matchesAny } from "../search";
import { useAnswer } from "../server";
import { number, plural, whole } from "../format";

const FORMATS: Record<string, string> = { fp16: "fp16", bf16: "bf16", e4m3: "fp8 e4m3", e5m2: "fp8 e5m2" };
/** Formats that are used with a scale per tensor. */
const SCALED = new Set(["e4m3", "e5m2"]);
const MOST_LINES = 200;

export function PrecisionScreen(props: { home: RunHome }) {
  const view = useView();
  const answer = useAnswer("precision", { run: props.home.run });
  const channels = useAnswer("channels", { run: props.home.run });
  const [chosen, choose] = useState<string | null>(null);
  const found = answer.value;
  if (!found) return <Waiting answer={answer} what="distributions" />;
  const isEmpty = !found.tensors.length && !channels.value?.tensors.length;
  if (isEmpty)
    return (
      <Empty title="No distributions yet">
        They are recorded every 50th step, unless <code>quantities</code> leaves <code>distribution</code> out.
      </Empty>
    );
  const shown = found.tensors.filter((one) => matchesAny([one.target, one.quantity], view.only));
  const picked = found.tensors.find((one) => keyOf(one) === chosen) ?? shown[0] ?? found.tensors[0];
  return (
    <>
      <div class="precision-head">
        <Search
          value={view.only}
          onInput={(only) => go({ only }, true)}
          placeholder="Find a tensor  /"
          label="Find a tensor"
        />
        <small>{plural(shown.length, "tensor")}</small>
      </div>
      {picked && <Ridge run={props.home.run} target={picked.target} quantity={picked.quantity} />}
      {found.tensors.length > 0 && (
        <Card
          title={
            <>
              What lower precisions would lose <small>{stepsOf(found.steps)}</small>
            </>
          }
        >
          <LossTable tensors={shown} chosen={picked ? keyOf(picked) : ""} onChoose={choose} />
          <p class="foot-note">
            Shares are of the elements that are neither zero nor NaN or Inf. Scaled: with the power of two that loses
            least. Rounding to fewer digits within a format's range is not counted.
            {found.num_tensors > found.tensors.length &&
              ` The first ${whole(found.tensors.length)} of ${whole(found.num_tensors)} tensors.`}
          </p>
        </Card>
      )}
      {channels.value && channels.value.tensors.length > 0 && (
        <Card
          title={
            <>
              Channels <small>step {whole(channels.value.tensors[0]!.step)}</small>
            </>
          }
        >
          <ChannelTable tensors={channels.value.tensors.filter((one) => matchesAny([one.target], view.only))} />
        </Card>
      )}
    </>
  );
}

function keyOf(one: TensorPrecision): string {
  return `${one.quantity}|${one.target}`;
}

function stepsOf(steps: Record<string, number>): string {
  const all = [...new Set(Object.values(steps))];
  return all.length === 1 ? `step ${whole(all[0])}` : `steps ${all.map(whole).join(", ")}`;
}

function LossTable(props: { tensors: TensorPrecision[]; chosen: string; onChoose: (key: string) => void }) {
  const [most, setMost] = useState(MOST_LINES);
  return (
    <>
      <div class="table-box precision-table" tabIndex={0} role="region" aria-label="What each tensor would lose">
        <table>
          <thead>
            <tr>
              <th>Tensor</th>
              <th>Quantity</th>
              <th class="num">Median</th>
              <th class="num">Largest</th>
              {Object.entries(FORMATS).map(([name, label]) => (
                <th key={name}>{label}</th>
              ))}
              {[...SCALED].map((name) => (
                <th key={name}>{FORMATS[name]} scaled</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {props.tensors.slice(0, most).map((one) => (
              <tr key={keyOf(one)} class={keyOf(one) === props.chosen ? "is-chosen" : ""}>
                <td>
                  <button
                    type="button"
                    class="link"
                    aria-pressed={keyOf(one) === props.chosen}
                    onClick={() => props.onChoose(keyOf(one))}
                  >
                    {one.target}
                  </button>
                </td>
                <td>{one.quantity}</td>
                <td class="num">{magnitude(one.median)}</td>
                <td class="num">{magnitude(one.largest)}</td>
                {Object.keys(FORMATS).map((name) => (
                  <td key={name}>{lossOf(one, one.as_is[name])}</td>
                ))}
                {[...SCALED].map((name) => (
                  <td key={name}>
                    {one.num_elements > 0 && one.scaled[name] && `×2^${one.scaled[name].scale}: `}
                    {lossOf(one, one.scaled[name])}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {props.tensors.length > most && (
        <button type="button" class="more" onClick={() => setMost(most + MOST_LINES)}>
          Show more
        </button>
      )}
    </>
  );
}

function lossOf(one: TensorPrecision, found: FormatLoss | undefined): string {
  if (!found || !one.num_elements) return "–";
  const parts = [
    ...((found.flushed.high ?? 0) > 0 ? [`${share(found.flushed)} to zero`] : []),
    ...((found.overflow.high ?? 0) > 0 ? [`${share(found.overflow)} too large`] : []),
  ];
  if (parts.length) return parts.join(", ");
  return (found.subnormal.high ?? 0) > 0 ? `${share(found.subnormal)} lose digits` : "in range";
}

function magnitude(range: Range): string {
  if (range.low === null) return "–";
  return range.low === range.high ? number(range.low, 2) : `${number(range.low, 2)} … ${number(range.high, 2)}`;
}

/** A share, as bounds where it is not known exactly. */
function share(range: Range): string {
  const low = percent(range.low);
  const high = percent(range.high);
  if (low === high) return `${low} %`;
  return range.low === 0 ? `up to ${high} %` : `${low} to ${high} %`;
}

function percent(value: number | null): string {
  if (value === null) return "–";
  if (value === 0) return "0";
  return value < 1e-5 ? "<0.001" : String(Number((100 * value).toPrecision(value < 0.995 ? 2 : 3)));
}

function ChannelTable(props: { tensors: TensorChannels[] }) {
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label="Largest channels">
      <table>
        <thead>
          <tr>
            <th>Tensor</th>
            <th class="num">Channels</th>
            <th class="num">Dead</th>
            <th class="num">Largest / mean</th>
            <th class="num">Squares in 1</th>
            <th class="num">in 8</th>
            <th>Largest channels</th>
          </tr>
        </thead>
        <tbody>
          {props.tensors.slice(0, MOST_LINES).map((one) => (
            <tr key={`${one.target} ${one.kind}`}>
              <td>{one.target}</td>
              <td class="num">
                {whole(one.num_channels)} {one.kind}
              </td>
              <td class="num">{one.num_dead ? whole(one.num_dead) : ""}</td>
              <td class="num">{number(one.peak, 3)}</td>
              <td class="num">{percent(one.share)} %</td>
              <td class="num">{percent(one.top_share)} %</td>
              <td>
                {one.top
                  .slice(0, 4)
                  .map((channel) => `${channel.index} (${number(channel.absmax, 3)})`)
                  .join(", ")}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
