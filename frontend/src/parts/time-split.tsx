/** Where the time of a run's steps goes, and what limits its speed. */

import type { TimeVerdict } from "../api";
import { duration, percent, whole } from "../format";

const PARTS: readonly [string, string, string][] = [
  ["input", "Waiting for input", "Time in which the device waits for the DataLoader"],
  ["forward", "Forward", "The model's forward passes"],
  ["backward", "Backward", "From the output to the last gradient"],
  ["communication", "Reducing gradients", "From this rank's last gradient to the end of backward: other ranks, links"],
  ["optimizer", "Optimizer", "The optimizers' updates"],
  ["rest", "Rest of the step", "In the step, outside passes and updates: loss, clipping, other ranks"],
  ["between", "Between steps", "The loop's own work between an update and the next forward pass"],
  ["evaluation", "Evaluation", "Passes without gradients"],
  ["checkpoint", "Checkpoints", "Functions that write checkpoints"],
  ["monitor", "vario", "The monitor itself"],
];

export function TimeSplit(props: { verdict: TimeVerdict; throughput: readonly string[] }) {
  const { text, advice, split } = props.verdict;
  const shown = PARTS.map((part, at) => ({ part, at, share: split.shares[part[0]] ?? 0 })).filter(
    (one) => one.share >= 0.005,
  );
  return (
    <section class="time-split" aria-label="Speed">
      <h2>{text}</h2>
      {props.throughput.length > 0 && <p>{props.throughput.join(" · ")}</p>}
      <div class="time-bar" aria-hidden="true">
        {shown.map(({ part, at, share }) => (
          <i
            key={part[0]}
            class={`time-part-${at}`}
            style={{ flexGrow: share }}
            title={`${part[1]} ${percent(share)}`}
          />
        ))}
      </div>
      <ul>
        {shown.map(({ part, at, share }) => (
          <li key={part[0]} title={part[2]}>
            <i class={`time-part-${at}`} /> {part[1]} <b>{percent(share)}</b>
          </li>
        ))}
      </ul>
      <p>
        {duration(split.step_seconds ?? 0)} a step, steps {whole(split.first_step)} to {whole(split.last_step)}
        {split.num_whole_steps < split.num_steps && `; passes measured in ${whole(split.num_whole_steps)} of them`}.
        Next: {advice}
      </p>
    </section>
  );
}
