/** Chooses the columns of the table of runs, what it is grouped by and what colours it. */

import { useState } from "preact/hooks";
import type { KnownColumn } from "../api";
import { go, useView } from "../navigation";
import { Card, Choice, Search, Waiting } from "../parts/basics";
import { matches } from "../search";
import { useAnswer } from "../server";
import { shownColumns, TITLES, USUAL } from "./lines";
import { toggled } from "./row";

const SOURCES = [
  ["run", "Run"],
  ["params", "Settings"],
  ["number", "Logged numbers"],
] as const;

export function Chooser(props: { onClose: () => void }) {
  const view = useView();
  const answer = useAnswer("columns", {});
  const [search, setSearch] = useState("");
  const shown = shownColumns(view);
  const turn = (key: string) => {
    const next = toggled(shown, key);
    go({ columns: String(next) === String(USUAL) ? [] : next });
  };
  const known = answer.value?.columns ?? null;
  const columnOptions = (source?: string) =>
    (known ?? []).filter((each) => !source || each.source === source).map((each) => [each.key, each.key] as const);
  return (
    <Card
      title="Columns"
      class="chooser"
      side={
        <>
          <button type="button" onClick={() => go({ columns: [], by: "", tint: "" })}>
            Reset
          </button>
          <button type="button" onClick={props.onClose}>
            Done
          </button>
        </>
      }
    >
      {!known ? (
        <Waiting answer={answer} what="columns" />
      ) : (
        <>
          <div class="controls">
            <Search value={search} onInput={setSearch} placeholder="Search columns" label="Search columns" />
            <Choice
              label="Group by"
              value={view.by}
              onChange={(by) => go({ by, closed: [] })}
              options={[["", "nothing"], ...columnOptions("params"), ...columnOptions("run")]}
            />
            <Choice
              label="Colour by"
              value={view.tint}
              onChange={(tint) => go({ tint })}
              options={[["", "nothing"], ...columnOptions("params"), ...figures(known)]}
            />
          </div>
          <div class="chooser-lists">
            {SOURCES.map(([source, title]) => (
              <fieldset key={source}>
                <legend>{title}</legend>
                {source === "run" &&
                  USUAL.filter((key) => matches(key, search)).map((key) => (
                    <Tick key={key} text={TITLES[key]!} isOn={shown.includes(key)} onTurn={() => turn(key)} />
                  ))}
                {known
                  .filter((each) => each.source === source && !(each.key in TITLES) && matches(each.key, search))
                  .map((each) =>
                    source === "number" ? (
                      <Number key={each.key} column={each} shown={shown} onTurn={turn} />
                    ) : (
                      <Tick
                        key={each.key}
                        text={each.key.replaceAll("_", " ")}
                        isOn={shown.includes(each.key)}
                        isSame={source === "params" && !each.differs}
                        onTurn={() => turn(each.key)}
                      />
                    ),
                  )}
              </fieldset>
            ))}
          </div>
        </>
      )}
    </Card>
  );
}

export function figures(known: readonly KnownColumn[]): (readonly [string, string])[] {
  return known.flatMap((each) =>
    each.source === "number"
      ? [[`${each.key}:best`, `best ${each.key}`] as const, [`${each.key}:last`, `last ${each.key}`] as const]
      : [],
  );
}

function Tick(props: { text: string; isOn: boolean; isSame?: boolean; onTurn: () => void }) {
  return (
    <label class={`tick ${props.isSame ? "is-same" : ""}`} title={props.isSame ? "The same in all runs" : undefined}>
      <input type="checkbox" checked={props.isOn} onChange={props.onTurn} />
      {props.text}
    </label>
  );
}

/** A logged number and the figures of it that can be columns. */
function Number(props: { column: KnownColumn; shown: readonly string[]; onTurn: (key: string) => void }) {
  const { key } = props.column;
  return (
    <div class="tick-number">
      <span>{key}</span>
      {["last", "best", "first"].map((figure) => (
        <button
          key={figure}
          type="button"
          aria-pressed={props.shown.includes(`${key}:${figure}`)}
          aria-label={`${figure} ${key}`}
          onClick={() => props.onTurn(`${key}:${figure}`)}
        >
          {figure}
        </button>
      ))}
    </div>
  );
}
