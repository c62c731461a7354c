/** What is wrong with a rank: the one that is slow, and those that differ. */

import type { ComponentChildren } from "preact";
import type { Desync, RankState, RankVerdict, RunHome } from "../api";
import { link } from "../navigation";
import { isReport, useAnswer } from "../server";
import { whole } from "../format";
import { SeverityIcon } from "./severity-icon";

export function Straggler(props: { verdict: RankVerdict; ranks: readonly RankState[]; children?: ComponentChildren }) {
  const { verdict, ranks } = props;
  const slow = verdict.slow.map((one) => one.rank);
  const hosts = slow.length === 1 ? ranks.filter((one) => one.rank === slow[0] && one.host).map((one) => one.host) : [];
  return (
    <section class="cause is-warn" aria-label="Straggler">
      <SeverityIcon severity="warn" />
      <div>
        <h2>{slow.length > 1 ? `Ranks ${slow.join(", ")} are slow` : `Rank ${slow[0]} is slow`}</h2>
        <p>
          {verdict.text}
          {hosts.length === 1 && ` It is on ${hosts[0]}.`}
        </p>
      </div>
      <div class="cause-links">{props.children}</div>
    </section>
  );
}

export function Desynced(props: { desync: Desync; children?: ComponentChildren }) {
  const { desync } = props;
  return (
    <section class="cause is-page" aria-label="Desync">
      <SeverityIcon severity="page" />
      <div>
        <h2>
          Ranks differ since step {whole(desync.step)}: {desync.quantity} of <span class="code">{desync.target}</span>
        </h2>
        <p>
          It should be identical on all ranks. {desync.ranks.length === 1 ? "Rank" : "Ranks"} {desync.ranks.join(", ")}{" "}
          differ{desync.ranks.length === 1 ? "s" : ""} from most.
        </p>
      </div>
      <div class="cause-links">{props.children}</div>
    </section>
  );
}

/** For the home screen: what only a comparison of ranks shows, and is not the incident that is told there. */
export function RankNotes(props: { home: RunHome; told: string | undefined }) {
  const { home, told } = props;
  const isAsked = home.world_size > 1 && !isReport();
  const answer = useAnswer("ranks", isAsked ? { run: home.run, points: 2 } : null);
  const toRanks = (
    <a class="button" {...link({ screen: "ranks" })}>
      Show the ranks
    </a>
  );
  const { verdict, desync, ranks } = answer.value ?? {};
  return (
    <>
      {desync && <Desynced desync={desync}>{toRanks}</Desynced>}
      {verdict?.kind === "slow" && told !== "straggler" && (
        <Straggler verdict={verdict} ranks={ranks ?? []}>
          {toRanks}
        </Straggler>
      )}
    </>
  );
}
