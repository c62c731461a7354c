/** What is wrong with a rank: the one that is slow, and those that differ. */

import type { ComponentChildren } from "preact";
import type { Desync, RunHome, Slowest } from "../api";
import { link } from "../navigation";
import { isReport, useAnswer } from "../server";
import { duration, percent, whole } from "../format";
import { SeverityIcon } from "./severity-icon";

/** On the home screen only a rank that is this much slower is named: a few per cent are noise. */
const CLEARLY = 0.2;

export function Straggler(props: { slowest: Slowest; children?: ComponentChildren }) {
  const { slowest } = props;
  return (
    <section class="cause is-warn" aria-label="Straggler">
      <SeverityIcon severity="warn" />
      <div>
        <h2>
          Rank {slowest.rank} is slow: {percent(slowest.share)} slower than most
        </h2>
        <p>
          Its {slowest.by.replace("_seconds", "").replaceAll("_", " ")} takes {duration(slowest.seconds)}, usually{" "}
          {duration(slowest.usual_seconds)}
          {slowest.host ? `, on ${slowest.host}` : ""}. The others wait for it at every step.
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

/** For the home screen: what only a comparison of ranks shows. */
export function RankNotes(props: { home: RunHome }) {
  const { home } = props;
  const isAsked = home.world_size > 1 && !isReport();
  const answer = useAnswer("ranks", isAsked ? { run: home.run, points: 2 } : null);
  const toRanks = (
    <a class="button" {...link({ screen: "ranks" })}>
      Show the ranks
    </a>
  );
  const { slowest, desync } = answer.value ?? {};
  return (
    <>
      {desync && <Desynced desync={desync}>{toRanks}</Desynced>}
      {slowest && (slowest.share ?? 0) > CLEARLY && <Straggler slowest={slowest}>{toRanks}</Straggler>}
    </>
  );
}
