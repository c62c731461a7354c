/** The module tree beside the heat map: blocks that span their rows, and the name of each row that is tall enough. */

import { useEffect, useRef, useState } from "preact/hooks";
import { splitKind, type Line, type Outline } from "./tree";

const BLOCK = 18;

export function Gutter(props: {
  outline: Outline;
  lineHeight: number;
  width: number;
  hovered: number | null;
  onFold: (name: string, isClosed: boolean) => void;
  onOnly: (name: string) => void;
  onOpen: (line: Line) => void;
}) {
  const { outline, lineHeight, width } = props;
  const isNamed = lineHeight >= 10 || outline.lines.some((line) => line.folded);
  const levels = Math.min(outline.depth, Math.max(1, Math.floor((width - (isNamed ? 84 : 0)) / BLOCK)));
  // A second click means something else, and folding would move another module under it: the first one waits for it.
  const waiting = useRef(0);
  useEffect(() => () => window.clearTimeout(waiting.current), []);
  const blocks = outline.blocks.filter(
    (block) => block.depth < levels && (block.bottom - block.top) * lineHeight >= 10,
  );
  // Where there is no room for blocks of the inner modules, the first row of each says its module too.
  const above = (index: number) =>
    outline.blocks
      .filter((block) => block.depth >= levels && block.top === index)
      .sort((a, b) => a.depth - b.depth)
      .map((block) => `${block.group.label}.`)
      .join("");
  const stops = [
    ...blocks.map(({ group, top, depth }) => ({ name: stopName(group.name, top), top, depth })),
    ...outline.lines.flatMap(({ folded, depth }, top) =>
      folded ? [{ name: stopName(folded.name, top), top, depth }] : [],
    ),
  ].sort((a, b) => a.top - b.top || a.depth - b.depth);
  const roving = useRoving(
    stops.map((stop) => stop.name),
    outline,
  );
  return (
    <div
      ref={roving.box}
      class="gutter"
      role="toolbar"
      aria-orientation="vertical"
      aria-label="Modules"
      style={{ width: `${width}px`, height: `${outline.lines.length * lineHeight}px` }}
      onKeyDown={roving.pressed}
    >
      {blocks.map(({ group, depth, top, bottom }) => {
        const height = (bottom - top) * lineHeight;
        return (
          <button
            key={group.name}
            type="button"
            class={`block ${height > 120 ? "is-long" : ""}`}
            aria-expanded="true"
            aria-label={`Fold ${group.name}`}
            {...roving.stop(stopName(group.name, top))}
            title={`${group.name}: click folds its ${group.to - group.from} rows into one, double click shows it alone`}
            style={{
              top: `${top * lineHeight}px`,
              height: `${height - 1}px`,
              left: `${depth * BLOCK}px`,
              width: `${BLOCK - 2}px`,
            }}
            onClick={(event) => {
              window.clearTimeout(waiting.current);
              const fold = () => {
                roving.keep(stopName(group.name, top));
                props.onFold(group.name, true);
              };
              if (event.detail === 0) fold();
              else if (event.detail === 1) waiting.current = window.setTimeout(fold, 260);
            }}
            onDblClick={() => props.onOnly(group.name)}
          >
            {blockText(group.label, height)}
          </button>
        );
      })}
      {outline.lines.map((line, index) =>
        lineHeight >= 10 || line.folded ? (
          <button
            key={index}
            type="button"
            class={`row-name ${line.folded ? "is-folded" : ""} ${props.hovered === index ? "is-hovered" : ""}`}
            {...(line.folded ? roving.stop(stopName(line.folded.name, index)) : { tabIndex: -1 })}
            title={line.folded ? `${line.folded.name}: click unfolds it` : line.label}
            aria-expanded={line.folded ? "false" : undefined}
            style={{
              top: `${index * lineHeight + Math.min(0, (lineHeight - 12) / 2)}px`,
              height: `${Math.max(lineHeight, 12)}px`,
              left: `${Math.min(line.depth, levels) * BLOCK + 3}px`,
              fontSize: lineHeight >= 14 ? "12px" : lineHeight >= 12 ? "11px" : "10px",
            }}
            onClick={() => {
              if (!line.folded) return props.onOpen(line);
              roving.keep(stopName(line.folded.name, index));
              props.onFold(line.folded.name, false);
            }}
          >
            {`${line.folded ? "▸ " : ""}${above(index)}${line.label}`.replace(".:", ":")}
            {line.folded && <em>{line.to - line.from}</em>}
          </button>
        ) : null,
      )}
    </div>
  );
}

/** A module stands at the same line whether it is folded or open. */
function stopName(name: string, top: number): string {
  return `${name} ${top}`;
}

/** One stop of the tab key for all modules, between which arrows move; who folds one by its key stays there. */
function useRoving(names: readonly string[], outline: Outline) {
  const box = useRef<HTMLDivElement>(null);
  const [current, setCurrent] = useState("");
  const kept = useRef("");
  const focus = (name: string) =>
    [...(box.current?.querySelectorAll<HTMLElement>("[data-stop]") ?? [])]
      .find((element) => element.dataset.stop === name)
      ?.focus();
  useEffect(() => {
    if (kept.current) focus(kept.current);
    kept.current = "";
  }, [outline]);
  const reached = names.includes(current) ? current : names[0];
  return {
    box,
    stop: (name: string) => ({
      "data-stop": name,
      tabIndex: name === reached ? 0 : -1,
      onFocus: () => setCurrent(name),
    }),
    keep: (name: string) => {
      if (box.current?.contains(document.activeElement)) kept.current = name;
    },
    pressed: (event: KeyboardEvent) => {
      const move = MOVES[event.key];
      const here = names.indexOf((event.target as HTMLElement).dataset.stop ?? "");
      if (!move || here < 0) return;
      event.preventDefault();
      focus(names[Math.min(names.length - 1, Math.max(0, here + move))]!);
    },
  };
}

const MOVES: Record<string, number> = {
  ArrowUp: -1,
  ArrowLeft: -1,
  ArrowDown: 1,
  ArrowRight: 1,
  Home: -Infinity,
  End: Infinity,
};

/** Short names stand upright, long ones along the block where they fit, the kind of several alike before the rest. */
function blockText(label: string, height: number) {
  if (label.length <= 2 && height >= 12) return <span class="upright">{label}</span>;
  if (height >= label.length * 6 + 8) return <span>{label}</span>;
  const short = splitKind(label)[1] || label.split(".").pop()!;
  if (short.length <= 2 && height >= 12) return <span class="upright">{short}</span>;
  const room = Math.floor((height - 8) / 6);
  if (room >= short.length) return <span>{short}</span>;
  if (room >= 4) return <span>{short.slice(0, room - 1)}…</span>;
  return room >= 2 ? <span>{short.slice(0, room)}</span> : null;
}
