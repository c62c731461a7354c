/** The figures screen: figures and small tables that the script kept beside the run. */

import { useState } from "preact/hooks";
import type { Attachment, RunHome } from "../api";
import { Card, Empty, Search, Waiting } from "../parts/basics";
import { address, useAnswer } from "../server";
import { go, useView } from "../navigation";
import { matchesAny } from "../search";
import { bytes, moment, number, plural, whole } from "../format";

/** All that was logged under one name, by step. */
interface Shelf {
  kind: Attachment["kind"];
  name: string;
  all: Attachment[];
}

export function FiguresScreen(props: { home: RunHome }) {
  const view = useView();
  const answer = useAnswer("attachments", { run: props.home.run });
  const found = answer.value;
  if (!found) return <Waiting answer={answer} what="figures" />;
  const shelves = shelvesOf(found.attachments);
  if (!shelves.length)
    return (
      <Empty title="No figures or tables">
        <code>log_figure</code> and <code>log_table</code> keep them beside the run.
      </Empty>
    );
  const shown = shelves.filter((shelf) => matchesAny([shelf.name], view.only));
  return (
    <>
      <div class="figures-head">
        <Search
          value={view.only}
          onInput={(only) => go({ only }, true)}
          placeholder="Find a figure or table  /"
          label="Find a figure or table"
        />
        <small>{plural(shelves.length, "name")}</small>
      </div>
      {shown.length === 0 && <Empty title="No matching names">Clear the search to show all.</Empty>}
      <div class="figures">
        {shown.map((shelf) => (
          <ShelfCard key={`${shelf.kind} ${shelf.name}`} run={props.home.run} shelf={shelf} />
        ))}
      </div>
    </>
  );
}

function shelvesOf(attachments: readonly Attachment[]): Shelf[] {
  const shelves = new Map<string, Shelf>();
  for (const one of attachments) {
    const key = `${one.kind} ${one.name}`;
    if (!shelves.has(key)) shelves.set(key, { kind: one.kind, name: one.name, all: [] });
    shelves.get(key)!.all.push(one);
  }
  return [...shelves.values()];
}

function ShelfCard(props: { run: string; shelf: Shelf }) {
  const { shelf } = props;
  // Null: the latest, also when a later one arrives.
  const [at, setAt] = useState<number | null>(null);
  const last = shelf.all.length - 1;
  const index = at === null ? last : Math.min(at, last);
  const one = shelf.all[index]!;
  return (
    <Card
      class={`figure-card is-${shelf.kind}`}
      title={
        <>
          {shelf.name}{" "}
          <small title={moment(one.time)}>
            step {whole(one.step)}
            {one.rank ? ` · rank ${one.rank}` : ""} · {bytes(one.num_bytes)}
          </small>
        </>
      }
      side={
        last > 0 && (
          <label class="choice">
            <span>
              {whole(index + 1)} of {whole(last + 1)}
            </span>
            <input
              type="range"
              min={0}
              max={last}
              value={index}
              aria-label={`Step of ${shelf.name}`}
              aria-valuetext={`step ${one.step}`}
              onInput={(event) => setAt(Number(event.currentTarget.value))}
            />
          </label>
        )
      }
    >
      {shelf.kind === "figure" ? (
        <img
          class="figure"
          loading="lazy"
          alt={`${shelf.name} at step ${one.step}`}
          src={address("figure", { run: props.run, name: one.name, step: one.step, rank: one.rank })}
        />
      ) : (
        <Rows run={props.run} one={one} />
      )}
    </Card>
  );
}

function Rows(props: { run: string; one: Attachment }) {
  const { name, step, rank } = props.one;
  const answer = useAnswer("attached", { run: props.run, name, step, rank });
  const found = answer.value;
  if (!found) return <Waiting answer={answer} what="table" />;
  const isNumber = found.columns.map((_, at) => found.rows.every((row) => typeof row[at] !== "string"));
  return (
    <>
      <div class="figure-rows" tabIndex={0} role="region" aria-label={`Table ${name}`}>
        <table>
          <thead>
            <tr>
              {found.columns.map((column, at) => (
                <th key={at} class={isNumber[at] ? "num" : ""}>
                  {column}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {found.rows.map((row, index) => (
              <tr key={index}>
                {row.map((value, at) => (
                  <td key={at} class={isNumber[at] ? "num" : ""}>
                    {cell(value)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {found.num_rows > found.rows.length && (
        <p class="foot-note">
          The first {whole(found.rows.length)} of {plural(found.num_rows, "row")}: vario keeps no more.
        </p>
      )}
    </>
  );
}

function cell(value: unknown): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "number") return number(value);
  return typeof value === "string" ? value : JSON.stringify(value);
}
