/** The module tree beside the heat map: blocks that span their rows, and the name of each row that is tall enough. */

import { useEffect, useRef, useState } from "preact/hooks";
import { splitKind, type Line, type Outline } from "./tree";

const BLOCK = 18;
/** The height of a name. */
const LABEL = 13;

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
  const levels = Math.min(outline.depth, Math.max(1, Math.floor((width - 84) / BLOCK)));
  const isThin = lineHeight < 10;
  const isDrawn = (block: Outline["blocks"][number]) =>
    block.depth < levels && (!isThin || (block.bottom - block.top) * lineHeight >= 10);
  const named = namedLines(outline.lines, lineHeight);
  // Wait for a double click before folding, which would move another module under the pointer.
  const waiting = useRef(0);
  useEffect(() => () => window.clearTimeout(waiting.current), []);
  const blocks = outline.blocks.filter((block) => isDrawn(block));
  // If there is no room for the blocks of inner modules, the first row of each names its module; of thin rows each.
  const above = (index: number) =>
    outline.blocks
      .filter((block) => !isDrawn(block) && (isThin ? isInside(block, index) : block.top === index))
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
            title={`${group.name}: click to fold its ${group.to - group.from} rows, double-click to show only these`}
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
        named.has(index) || props.hovered === index ? (
          <button
            key={index}
            type="button"
            class={`row-name ${line.folded ? "is-folded" : ""} ${props.hovered === index ? "is-hovered" : ""}`}
            {...(line.folded ? roving.stop(stopName(line.folded.name, index)) : { tabIndex: -1 })}
            title={line.folded ? `${line.folded.name}: click to unfold` : line.label}
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

function isInside(block: { top: number; bottom: number }, index: number): boolean {
  return block.top <= index && index < block.bottom;
}

/** The lines with a name beside them: all that are tall enough, folded modules, and of thin rows every n-th. */
export function namedLines(lines: readonly Line[], lineHeight: number): ReadonlySet<number> {
  const found = new Set<number>();
  let free = 0;
  lines.forEach((line, index) => {
    const isDue = index * lineHeight >= free;
    if (lineHeight < 10 && !line.folded && !isDue) return;
    found.add(index);
    free = index * lineHeight + LABEL;
  });
  return found;
}

/** A module is at the same line whether it is folded or not. */
function stopName(name: string, top: number): string {
  return `${name} ${top}`;
}

/** One tab stop for all modules, with arrow keys to move between them; folding keeps the focus. */
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

/** Short names are horizontal, long ones run along the block if they fit; with several kinds, the kind comes first. */
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
