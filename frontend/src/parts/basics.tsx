/** Small components that every screen uses. */

import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import type { Maybe } from "../api";
import { SYNTAX } from "../search";
import type { Answer } from "../server";

const STATE_WORDS: Record<string, string> = {
  running: "running",
  finished: "finished",
  crashed: "crashed",
  stalled: "stalled",
  died: "died",
  interrupted: "interrupted",
};

export function Pill(props: { state: string }) {
  return (
    <span class={`pill pill-${props.state}`}>
      <i aria-hidden="true" />
      {STATE_WORDS[props.state] ?? props.state}
    </span>
  );
}

/** Marks a loss that the script did not log. */
export function Found(props: { isShort?: boolean }) {
  const words = "found by vario: the script logs no loss";
  return (
    <abbr class="found" title={words} aria-label={words}>
      {props.isShort ? "*" : "found"}
    </abbr>
  );
}

export function Meter(props: { share: Maybe; label: string }) {
  if (props.share === null) return null;
  const percent = Math.min(100, Math.max(0, props.share * 100));
  return (
    <div
      class="meter"
      role="progressbar"
      aria-label={props.label}
      aria-valuenow={Math.round(percent)}
      aria-valuemin={0}
      aria-valuemax={100}
    >
      <i style={{ width: `${percent}%` }} />
    </div>
  );
}

/** A sparkline. Missing values leave a gap. */
export function Spark(props: { values: readonly Maybe[]; label?: string; tone?: string }) {
  const known = props.values.filter((value): value is number => value !== null && Number.isFinite(value));
  if (known.length < 2) return <svg class="spark" viewBox="0 0 100 28" aria-hidden="true" />;
  // Halved: the difference of the largest numbers of both signs would overflow.
  const low = Math.min(...known) / 2;
  const span = Math.max(...known) / 2 - low || 1;
  const across = Math.max(1, props.values.length - 1);
  let path = "";
  let isPen = false;
  let end: [number, number] = [0, 0];
  props.values.forEach((value, index) => {
    if (value === null || !Number.isFinite(value)) isPen = false;
    else {
      const x = 2 + (index / across) * 94;
      const y = 25 - ((value / 2 - low) / span) * 22;
      path += `${isPen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      if (!isPen && (props.values[index + 1] ?? null) === null) path += "h.01";
      isPen = true;
      end = [x, y];
    }
  });
  return (
    <svg
      class={`spark ${props.tone ?? ""}`}
      viewBox="0 0 100 28"
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label ?? "curve"}
    >
      <path d={path} vector-effect="non-scaling-stroke" />
      <path class="spark-end" d={`M${end[0].toFixed(1)} ${end[1].toFixed(1)}h.01`} vector-effect="non-scaling-stroke" />
    </svg>
  );
}

export function Card(props: {
  title?: ComponentChildren;
  side?: ComponentChildren;
  children: ComponentChildren;
  class?: string;
  label?: string;
}) {
  return (
    <section class={`card ${props.class ?? ""}`} aria-label={props.label}>
      {(props.title || props.side) && (
        <header class="card-head">
          {props.title && <h2>{props.title}</h2>}
          {props.side && <div class="card-side">{props.side}</div>}
        </header>
      )}
      {props.children}
    </section>
  );
}

export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <svg viewBox="0 0 64 40" aria-hidden="true">
        <path d="M6 30C16 30 18 12 28 12s10 12 18 12 8-6 12-6" />
      </svg>
      <h2>{props.title}</h2>
      {props.children && <p>{props.children}</p>}
    </div>
  );
}

/** A placeholder for an answer: loading, or the error and what to do. */
export function Waiting(props: { answer: Answer<unknown>; what: string }) {
  const { error, isLoading, again } = props.answer;
  if (error)
    return (
      <Empty title={error.status === 404 ? `No ${props.what} found` : `Cannot show the ${props.what}`}>
        {error.message}{" "}
        <button type="button" class="link" onClick={again}>
          Try again
        </button>
      </Empty>
    );
  return (
    <div class="loading" role="status" aria-live="polite">
      <i aria-hidden="true" />
      <span class="only-read">{isLoading ? `Loading ${props.what}` : ""}</span>
    </div>
  );
}

export function Choice<Value extends string>(props: {
  label: string;
  /** Whether the label is only read aloud. */
  isHidden?: boolean;
  value: Value;
  options: readonly (readonly [Value, string])[];
  onChange: (value: Value) => void;
}) {
  const id = useId();
  return (
    <label class="choice" for={id}>
      <span class={props.isHidden ? "only-read" : ""}>{props.label}</span>
      <select id={id} value={props.value} onChange={(event) => props.onChange(event.currentTarget.value as Value)}>
        {props.options.map(([value, text]) => (
          <option key={value} value={value} selected={value === props.value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
}

/** A few exclusive choices, side by side. */
export function Segments<Value extends string>(props: {
  label: string;
  value: Value;
  options: readonly (readonly [Value, string, string?])[];
  onChange: (value: Value) => void;
}) {
  return (
    <div class="segments" role="group" aria-label={props.label}>
      {props.options.map(([value, text, title]) => (
        <button
          key={value}
          type="button"
          title={title}
          aria-pressed={value === props.value}
          onClick={() => props.onChange(value)}
        >
          {text}
        </button>
      ))}
    </div>
  );
}

export function Search(props: { value: string; onInput: (value: string) => void; placeholder: string; label: string }) {
  return (
    <input
      class="search"
      type="search"
      value={props.value}
      placeholder={props.placeholder}
      aria-label={props.label}
      data-search
      spellcheck={false}
      autocomplete="off"
      onInput={(event) => props.onInput(event.currentTarget.value)}
      title={SYNTAX}
      onKeyDown={(event) => {
        if (!leaveSearch(event)) return;
        if (event.key === "Escape" && props.value) props.onInput("");
      }}
    />
  );
}

const LEAVING = new Set(["Enter", "Escape", "ArrowDown", "ArrowUp"]);

/** Arrows, Enter and Esc leave a search box; from then on the keys of the list or the map work. Esc also clears it. */
export function leaveSearch(event: KeyboardEvent): boolean {
  if (!LEAVING.has(event.key) || event.isComposing) return false;
  const box = event.currentTarget as HTMLElement;
  box.blur();
  box.closest(".card")?.querySelector<HTMLElement>("[data-keys]")?.focus();
  // An arrow also moves in the list, see keys.ts.
  if (!event.key.startsWith("Arrow")) event.preventDefault();
  return true;
}

/** A long name that is shortened in the middle: its end matters most. */
export function Name(props: { children: string }) {
  const text = props.children;
  const cut = Math.max(0, text.length - 18);
  return (
    <span class="name" title={text}>
      {cut > 0 && <span>{text.slice(0, cut)}</span>}
      <span>{text.slice(cut)}</span>
    </span>
  );
}
