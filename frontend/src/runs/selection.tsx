/** What can be done with the selected runs. */

import { CLEARED, go, useView } from "../navigation";
import { plural } from "../format";

export function SelectionBar(props: { chosen: readonly string[] }) {
  const view = useView();
  const { chosen } = props;
  if (!chosen.length) return null;
  return (
    <div class="chosen-bar" role="region" aria-label="Selected runs">
      <span>{plural(chosen.length, "run")} selected</span>
      <button
        type="button"
        class="button is-main"
        disabled={chosen.length < 2}
        onClick={() => go({ ...CLEARED, run: chosen[0]!, runs: chosen.slice(1), screen: "compare" })}
      >
        {chosen.length < 2 ? "Select another to compare" : "Compare"}
      </button>
      {view.list === "table" && (
        <button type="button" class="button" onClick={() => go({ list: "charts" })}>
          Charts
        </button>
      )}
      <button type="button" class="button" onClick={() => go({ hidden: [...view.hidden, ...chosen], chosen: [] })}>
        Hide
      </button>
      <button type="button" class="button" onClick={() => go({ chosen: [] })}>
        Clear
      </button>
    </div>
  );
}
