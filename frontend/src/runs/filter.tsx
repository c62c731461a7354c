/** The filter of the list of runs: an expression that the server checks and applies. */

import { useEffect, useState } from "preact/hooks";
import { go, useView } from "../navigation";
import { useTyped } from "../search";
import { leaveSearch } from "../parts/basics";
import type { ServerError } from "../server";

export function Filter(props: { error: ServerError | null }) {
  const view = useView();
  const [text, setText] = useState(view.where);
  const typed = useTyped(text, 400);
  // Changed from elsewhere: a link, or back and forth in the history.
  useEffect(() => setText(view.where), [view.where]);
  useEffect(() => {
    if (typed.trim() !== view.where) go({ where: typed.trim() }, true);
    // oxlint-disable-next-line react/exhaustive-deps -- what was typed, not what the address says
  }, [typed]);
  const isWrong = props.error !== null && props.error.key !== null;
  return (
    <label class="filter">
      <span class="only-read">Filter runs</span>
      <input
        class={`search is-filter ${isWrong ? "is-wrong" : ""}`}
        type="search"
        value={text}
        spellcheck={false}
        autocomplete="off"
        placeholder="Filter: lr > 0.001 and state = finished"
        aria-invalid={isWrong}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") go({ where: text.trim() });
          if (leaveSearch(event) && event.key === "Escape") setText("");
        }}
      />
      {isWrong && (
        <small class="red-text" role="alert">
          {props.error!.message}
        </small>
      )}
    </label>
  );
}
