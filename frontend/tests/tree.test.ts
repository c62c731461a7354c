import assert from "node:assert/strict";
import { test } from "node:test";
import {
  ALL_OPEN,
  buildTree,
  closedNow,
  isGroup,
  outline,
  parts,
  startClosed,
  withFolded,
  type Group,
  type Leaf,
} from "../src/heat/tree";

const TARGETS = [
  "embed.weight",
  "net.layers.0.attn.q.weight",
  "net.layers.0.attn.k.weight",
  "net.layers.0.attn.v.weight",
  "net.layers.0.norm.weight",
  "net.layers.1.attn.q.weight",
  "net.layers.1.attn.k.weight",
  "net.layers.1.attn.v.weight",
  "net.layers.1.norm.weight",
  "head.weight",
];

function names(nodes: (Group | Leaf)[]): unknown[] {
  return nodes.map((node) => (isGroup(node) ? [node.label, names(node.children)] : node.label));
}

test("modules are ranges of rows, chains of one child are one label", () => {
  const layer = ["attn", ["q.weight", "k.weight", "v.weight"]];
  assert.deepEqual(names(buildTree(TARGETS)), [
    "embed.weight",
    [
      "net.layers",
      [
        ["0", [layer, "norm.weight"]],
        ["1", [layer, "norm.weight"]],
      ],
    ],
    "head.weight",
  ]);
});

test("a group knows its whole name and its rows", () => {
  const net = buildTree(TARGETS)[1] as Group;
  assert.deepEqual([net.name, net.from, net.to], ["net.layers", 1, 9]);
  const second = net.children[1] as Group;
  assert.deepEqual([second.name, second.from, second.to], ["net.layers.1", 5, 9]);
});

test("a module's own sides stand inside it", () => {
  const tree = buildTree(["a:input", "a.b:output", "a.c:output", "a:output", "z:output"]);
  assert.deepEqual(names(tree), [["a", [":input", "b:output", "c:output", ":output"]], "z:output"]);
});

test("a module of one or two rows is no group", () => {
  assert.deepEqual(names(buildTree(["norm.weight", "norm.bias", "head.weight"])), [
    "norm.weight",
    "norm.bias",
    "head.weight",
  ]);
});

test("folding makes one line of a module and leaves the others", () => {
  const tree = buildTree(TARGETS);
  const open = outline(tree, new Set());
  assert.equal(open.lines.length, 10);
  assert.equal(open.depth, 3);
  const folded = outline(tree, new Set(["net.layers.0"]));
  assert.equal(folded.lines.length, 7);
  const line = folded.lines[1]!;
  assert.deepEqual([line.label, line.from, line.to, line.folded?.name], ["0", 1, 5, "net.layers.0"]);
  const block = folded.blocks.find((each) => each.group.name === "net.layers")!;
  assert.deepEqual([block.top, block.bottom], [1, 6]);
});

test("names are cut at dots, sides and optimizer states", () => {
  assert.deepEqual(parts("layers.0.attn:output"), ["layers", "0", "attn", ":output"]);
  assert.deepEqual(parts("layers.0.weight/exp_avg"), ["layers", "0", "weight/exp_avg"]);
});

test("a module that comes once for each kind of row says which, and folds alone", () => {
  const rows = ["blocks.0.a.weight", "blocks.0.b.weight", "blocks.0.c.weight", "blocks.1.weight", "head.weight"];
  const tree = buildTree([":change", ":ratio"].flatMap((kind) => rows.map((row) => row + kind)));
  assert.deepEqual(
    tree.filter(isGroup).map((group) => [group.label, group.name]),
    [
      ["blocks:change", "blocks:change"],
      ["blocks:ratio", "blocks:ratio"],
    ],
  );
  const inner = (tree[0] as Group).children[0] as Group;
  assert.deepEqual([inner.label, inner.name], ["0", "blocks.0:change"]);
  assert.equal(outline(tree, new Set(["blocks:ratio"])).lines.length, 5 + 2);
  assert.deepEqual(names(buildTree(["a.x:output", "a.y:output", "a.z:output"])), [
    ["a", ["x:output", "y:output", "z:output"]],
  ]);
});

function many(layers: number, per: number): string[] {
  const rows = Array.from(
    { length: per },
    (_, index) => (index % 2 ? "mlp" : "attn") + (index % 2) + `.w${index}`,
  ).sort();
  return Array.from({ length: layers }, (_, layer) => rows.map((row) => `net.layers.${layer}.${row}`)).flat();
}

test("of very many rows the deepest level of modules that fits is folded, and of few none", () => {
  const targets = ["embed.weight", ...many(20, 20), "head.weight"];
  const tree = buildTree(targets);
  assert.equal(startClosed(tree, targets.length, 500).size, 0);
  const start = startClosed(tree, targets.length, 250);
  assert.equal(start.size, 40);
  assert.equal(outline(tree, start).lines.length, 42);
  assert.equal(startClosed(tree, targets.length, 30).size, 20);
  // One line for all of them would tell nothing.
  const flat = Array.from({ length: 300 }, (_, index) => `layers.${index}`);
  assert.equal(startClosed(buildTree(flat), 300, 250).size, 0);
});

test("what is opened and folded again leaves no wish behind", () => {
  const start = new Set(["a", "b"]);
  const opened = withFolded(start, [], "a", false);
  assert.deepEqual(opened, ["!a"]);
  assert.deepEqual([...closedNow(start, opened)], ["b"]);
  assert.deepEqual(withFolded(start, opened, "a", true), []);
  assert.deepEqual([...closedNow(start, [ALL_OPEN, "c"])], ["c"]);
  assert.deepEqual(withFolded(start, [ALL_OPEN], "b", true), [ALL_OPEN, "b"]);
  assert.deepEqual(withFolded(new Set(), ["c"], "c", false), []);
});
