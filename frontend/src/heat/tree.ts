/** Targets in model order as a tree of modules; a module is a range of rows that stand together. */

export interface Leaf {
  row: number;
  label: string;
}

export interface Group {
  /** The full name of the module, with its kind if it occurs once per kind of row: `blocks:ratio`. */
  name: string;
  /** Its name within its parent. */
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

/** Build the tree of targets. A module of one or two rows is not a group, and chains of single children are one label. */
export function buildTree(targets: readonly string[]): (Group | Leaf)[] {
  const nodes = level(targets.map(parts), 0, targets.length, 0);
  const times = new Map<string, number>();
  const count = (node: Group | Leaf): void => {
    if (!isGroup(node)) return;
    times.set(node.name, (times.get(node.name) ?? 0) + 1);
    node.children.forEach(count);
  };
  nodes.forEach(count);
  return nodes.map((node) => tellApart(node, targets, times, false));
}

/** If a module occurs several times, once per kind of row, the kind is part of its name. */
function tellApart(
  node: Group | Leaf,
  targets: readonly string[],
  times: ReadonlyMap<string, number>,
  isTold: boolean,
): Group | Leaf {
  if (!isGroup(node)) return node;
  const kind = times.get(node.name)! > 1 ? kindOf(targets.slice(node.from, node.to)) : "";
  return {
    ...node,
    name: node.name + kind,
    label: isTold ? node.label : node.label + kind,
    children: node.children.map((child) => tellApart(child, targets, times, isTold || kind !== "")),
  };
}

/** The common suffix of all targets after the colon, if any. */
function kindOf(targets: readonly string[]): string {
  const colon = targets[0]!.indexOf(":");
  const kind = colon < 0 ? "" : targets[0]!.slice(colon);
  return targets.every((target) => target.indexOf(":") >= 0 && target.slice(target.indexOf(":")) === kind) ? kind : "";
}

/** A module's name without its kind, and the kind. */
export function splitKind(name: string): [string, string] {
  const colon = name.indexOf(":");
  return colon < 0 ? [name, ""] : [name.slice(0, colon), name.slice(colon)];
}

/** The modules to fold in a map with very many rows: those of the deepest level that leaves at most `most` lines. */
export function startClosed(nodes: readonly (Group | Leaf)[], rows: number, most: number): ReadonlySet<string> {
  if (rows <= most) return new Set();
  let best: Group[] = [];
  let groups = nodes.filter(isGroup);
  while (groups.length) {
    const lines = rows - groups.reduce((sum, { from, to }) => sum + to - from - 1, 0);
    // A handful of lines would show nothing.
    if (lines <= most && lines >= FEWEST) best = groups;
    groups = groups.flatMap(({ children }) => children.filter(isGroup));
  }
  return new Set(best.map(({ name }) => name));
}

const FEWEST = 6;
/** In a view's folded modules: all are unfolded, even those that start folded. */
export const ALL_OPEN = "!";

/** Which modules are folded: the initial ones plus the user's changes. */
export function closedNow(start: ReadonlySet<string>, wished: readonly string[]): Set<string> {
  const closed = new Set(wished.includes(ALL_OPEN) ? [] : start);
  for (const name of wished)
    if (name.startsWith(ALL_OPEN)) closed.delete(name.slice(1));
    else closed.add(name);
  return closed;
}

/** The user's changes after folding or unfolding a module: only differences from the initial state. */
export function withFolded(
  start: ReadonlySet<string>,
  wished: readonly string[],
  name: string,
  isClosed: boolean,
): string[] {
  const rest = wished.filter((each) => each !== name && each !== ALL_OPEN + name);
  if (closedNow(start, rest).has(name) === isClosed) return rest;
  return [...rest, isClosed ? name : ALL_OPEN + name];
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

/** The visible lines of the tree when some modules are folded. */
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
