/** Where the time of a step goes, on each rank, and which rank the others wait for. */

import type { RankTimes, RankVerdict } from "../api";
import { duration } from "../format";
import { Card } from "./basics";

const PARTS = [
  ["wait_seconds", "Data", "From the previous update to the first forward pass: loading data, logging and so on"],
  ["forward_seconds", "Forward", "In forward passes"],
  ["backward_seconds", "Backward", "From the start of backward to this rank's last gradient"],
  ["communication_seconds", "Communication", "In collectives that do not overlap with other work"],
  ["update_seconds", "Optimizer", "In the optimizer's step"],
  ["rest_seconds", "Rest", "Everything else, such as waiting for other ranks"],
] as const;

export function RankTimesCard(props: { verdict: RankVerdict }) {
  const { verdict } = props;
  const known = PARTS.filter(([name]) => verdict.times.some((one) => one[name] !== null));
  const hasCommunication = known.some(([name]) => name === "communication_seconds");
  return (
    <Card title="Where the time of a step goes" label="Time of each rank">
      {verdict.kind !== "slow" && <p>{verdict.text}</p>}
      {known.length > 0 && (
        <div class="table-box">
          <table>
            <thead>
              <tr>
                <th class="num">Rank</th>
                <th class="num">Step</th>
                {known.map(([name, title, meaning]) => (
                  <th key={name} class="num" title={meaning}>
                    {title}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {verdict.times.map((one) => (
                <Row key={one.rank} times={one} parts={known.map(([name]) => name)} verdict={verdict} />
              ))}
            </tbody>
          </table>
        </div>
      )}
      {known.length > 0 && (
        <p class="foot-note">
          Means of the last steps. The rest includes waiting for other ranks
          {hasCommunication ? "" : ", and communication, which is not recorded"}.
        </p>
      )}
    </Card>
  );
}

function Row(props: { times: RankTimes; parts: readonly (typeof PARTS)[number][0][]; verdict: RankVerdict }) {
  const { times, verdict } = props;
  const slow = verdict.slow.filter((one) => one.rank === times.rank);
  return (
    <tr>
      <td class="num">{times.rank}</td>
      <td class="num">{duration(times.step_seconds)}</td>
      {props.parts.map((name) => (
        <td key={name} class={`num ${slow.some((one) => one.target === name) ? "amber-text" : ""}`}>
          {duration(times[name])}
        </td>
      ))}
    </tr>
  );
}
