/** The module tree beside the heat map: blocks that span their rows, and the name of each row that is tall enough. */

import type { Line, Outline } from "./tree";

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
  return (
    <div class="gutter" style={{ width: `${width}px`, height: `${outline.lines.length * lineHeight}px` }}>
      {outline.blocks
        .filter((block) => block.depth < levels && (block.bottom - block.top) * lineHeight >= 10)
        .map(({ group, depth, top, bottom }) => {
          const height = (bottom - top) * lineHeight;
          return (
            <button
              key={group.name}
              type="button"
              class="block"
              aria-expanded="true"
              aria-label={`Fold ${group.name}`}
              title={`${group.name}: click folds its ${group.to - group.from} rows into one, double click shows it alone`}
              style={{
                top: `${top * lineHeight}px`,
                height: `${height - 1}px`,
                left: `${depth * BLOCK}px`,
                width: `${BLOCK - 2}px`,
              }}
              onClick={() => props.onFold(group.name, true)}
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
            tabIndex={line.folded ? 0 : -1}
            title={line.folded ? `${line.folded.name}: click unfolds it` : line.label}
            aria-expanded={line.folded ? "false" : undefined}
            style={{
              top: `${index * lineHeight + Math.min(0, (lineHeight - 12) / 2)}px`,
              height: `${Math.max(lineHeight, 12)}px`,
              left: `${Math.min(line.depth, levels) * BLOCK + 3}px`,
              fontSize: lineHeight >= 14 ? "12px" : lineHeight >= 12 ? "11px" : "10px",
            }}
            onClick={() => (line.folded ? props.onFold(line.folded.name, false) : props.onOpen(line))}
          >
            {line.folded ? `▸ ${line.label}` : line.label}
            {line.folded && <em>{line.to - line.from}</em>}
          </button>
        ) : null,
      )}
    </div>
  );
}

/** Short names stand upright, long ones along the block where they fit. */
function blockText(label: string, height: number) {
  if (label.length <= 2 && height >= 12) return <span class="upright">{label}</span>;
  if (height >= label.length * 6 + 8) return <span>{label}</span>;
  const short = label.split(".").pop()!;
  if (short.length <= 2 && height >= 12) return <span class="upright">{short}</span>;
  const room = Math.floor((height - 8) / 6);
  if (room >= short.length) return <span>{short}</span>;
  return room >= 4 ? <span>{short.slice(0, room - 1)}…</span> : null;
}
