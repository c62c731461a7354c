/** Find a series by a part of its name and add it. */

import { useEffect, useRef, useState } from "preact/hooks";
import type { RunHome } from "../api";
import { Choice, Name } from "../parts/basics";
import { useAnswer } from "../server";
import { formatSeries } from "../view";
import { plural } from "../format";

export function Finder(props: { home: RunHome; shown: readonly string[]; onAdd: (series: string) => void }) {
  const { home } = props;
  const [quantity, setQuantity] = useState(
    home.quantities.find((each) => each.name === "gradient")?.name ?? home.quantities[0]?.name ?? "scalar",
  );
  const [statistic, setStatistic] = useState("");
  const [search, setSearch] = useState("");
  const [isOpen, setOpen] = useState(false);
  const [current, setCurrent] = useState(0);
  const box = useRef<HTMLDivElement>(null);
  const answer = useAnswer("targets", isOpen ? { run: home.run, quantity, search, limit: 50 } : null);
  const chosen = home.quantities.find((each) => each.name === quantity);
  const found = answer.value?.targets ?? [];
  const used = chosen?.statistics.includes(statistic) ? statistic : (chosen?.default_statistic ?? "value");
  const add = (target: string) => props.onAdd(formatSeries({ quantity, target, statistic: used }));
  useEffect(() => setCurrent(0), [search, quantity]);
  useEffect(() => {
    const close = (event: MouseEvent) => !box.current?.contains(event.target as Node) && setOpen(false);
    document.addEventListener("pointerdown", close);
    return () => document.removeEventListener("pointerdown", close);
  }, []);
  const pressed = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setCurrent(Math.max(0, Math.min(found.length - 1, current + 1)));
    else if (event.key === "ArrowUp") setCurrent(Math.max(0, current - 1));
    else if (event.key === "Enter" && found[current]) add(found[current]);
    else if (event.key === "Escape") return (setOpen(false), (event.target as HTMLElement).blur());
    else return;
    event.preventDefault();
  };
  return (
    <>
      <Choice
        label="Add"
        value={quantity}
        onChange={setQuantity}
        options={home.quantities.map((each) => [each.name, each.name.replaceAll("_", " ")] as const)}
      />
      {(chosen?.statistics.length ?? 0) > 1 && (
        <Choice
          label="Statistic"
          isHidden
          value={used}
          onChange={setStatistic}
          options={chosen!.statistics.map((name) => [name, name] as const)}
        />
      )}
      <div class="finder" ref={box}>
        <input
          class="search"
          type="text"
          data-search
          role="combobox"
          aria-expanded={isOpen}
          aria-controls="finder-list"
          aria-autocomplete="list"
          aria-activedescendant={isOpen && found.length ? optionId(current) : undefined}
          aria-label="Find a series to add"
          placeholder="Find a target  /"
          value={search}
          autocomplete="off"
          spellcheck={false}
          onFocus={() => setOpen(true)}
          onInput={(event) => setSearch(event.currentTarget.value)}
          onKeyDown={pressed}
        />
        {isOpen && (
          <ul class="finder-list" id="finder-list" role="listbox" aria-label="Series">
            {found.map((target, index) => (
              <li
                key={target}
                id={optionId(index)}
                role="option"
                aria-selected={index === current}
                onPointerEnter={() => setCurrent(index)}
                onClick={() => add(target)}
              >
                <Name>{target}</Name>
                <small>
                  {props.shown.includes(formatSeries({ quantity, target, statistic: used })) ? "shown" : ""}
                </small>
              </li>
            ))}
            {answer.value && found.length === 0 && (
              <li class="finder-note">No matching target of {quantity.replaceAll("_", " ")}.</li>
            )}
            {answer.value && answer.value.total > found.length && (
              <li class="finder-note">
                {plural(answer.value.total - found.length, "more", "more")}: type more of the name.
              </li>
            )}
          </ul>
        )}
      </div>
    </>
  );
}

/** The input keeps the focus, so it announces the option selected with the arrow keys. */
function optionId(index: number): string {
  return `finder-option-${index}`;
}
