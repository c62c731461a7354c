/** Targets in model order as a tree of modules; a module is a stretch of rows that stand together. */

export interface Leaf {
  row: number;
  label: string;
}

export interface Group {
  /** The full name of the module. */
  name: string;
  /** What it is called inside its parent. */
  label: string;
  from: number;
  to: number;
  children: (Group | Leaf)[];
}

export function isGroup(node: Group | Leaf): node is Group {
  return "children" in node;
}

/** `layers.0.attn:output` is `layers`, `0`, `attn` and the side `:output`; a parameter's last part is its own. */
export function parts(target: string): string[] {
  const colon = target.indexOf(":");
  const slash = target.indexOf("/");
  const end = colon >= 0 ? colon : slash >= 0 ? slash : -1;
  if (end < 0) return target.split(".");
  const names = target.slice(0, end).split(".");
  return colon >= 0
    ? [...names, target.slice(end)]
    : [...names.slice(0, -1), names[names.length - 1]! + target.slice(end)];
}

/** The tree over targets. A module of one or two rows is no group, and chains of one child are one label. */
export function buildTree(targets: readonly string[]): (Group | Leaf)[] {
  return level(targets.map(parts), 0, targets.length, 0);
}

function level(names: readonly string[][], from: number, to: number, depth: number): (Group | Leaf)[] {
  const nodes: (Group | Leaf)[] = [];
  let row = from;
  while (row < to) {
    const path = names[row]!;
    let end = row + 1;
    if (path.length > depth + 1)
      while (end < to && names[end]!.length > depth + 1 && names[end]![depth] === path[depth]) end++;
    if (end - row <= 2) for (; row < end; row++) nodes.push({ row, label: join(names[row]!.slice(depth)) });
    else nodes.push(group(names, row, end, depth));
    row = end;
  }
  return nodes;
}

function group(names: readonly string[][], from: number, to: number, depth: number): Group {
  let deep = depth + 1;
  let children = level(names, from, to, deep);
  while (children.length === 1 && isGroup(children[0]!) && children[0].from === from && children[0].to === to) {
    const only: Group = children[0];
    deep += only.label.split(".").length;
    children = only.children;
  }
  const path = names[from]!;
  return { name: join(path.slice(0, deep)), label: join(path.slice(depth, deep)), from, to, children };
}

function join(names: readonly string[]): string {
  return names.join(".").replaceAll(".:", ":");
}

export interface Line {
  /** Rows of the heat map this line shows: one, or all of a folded module. */
  from: number;
  to: number;
  label: string;
  /** The module that is folded here, if one is. */
  folded: Group | null;
  depth: number;
}

export interface Block {
  group: Group;
  depth: number;
  /** Lines it spans. */
  top: number;
  bottom: number;
}

export interface Outline {
  lines: Line[];
  blocks: Block[];
  depth: number;
}

/** What is seen of the tree when some modules are folded. */
export function outline(nodes: readonly (Group | Leaf)[], closed: ReadonlySet<string>): Outline {
  const lines: Line[] = [];
  const blocks: Block[] = [];
  let deepest = 0;
  const walk = (node: Group | Leaf, depth: number): void => {
    if (!isGroup(node)) lines.push({ from: node.row, to: node.row + 1, label: node.label, folded: null, depth });
    else if (closed.has(node.name))
      lines.push({ from: node.from, to: node.to, label: node.label, folded: node, depth });
    else {
      const top = lines.length;
      node.children.forEach((child) => walk(child, depth + 1));
      blocks.push({ group: node, depth, top, bottom: lines.length });
      deepest = Math.max(deepest, depth + 1);
    }
  };
  nodes.forEach((node) => walk(node, 0));
  return { lines, blocks, depth: deepest };
}
