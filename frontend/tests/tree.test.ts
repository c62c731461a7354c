import assert from "node:assert/strict";
import { test } from "node:test";
import { buildTree, isGroup, outline, parts, type Group, type Leaf } from "../src/heat/tree";

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

test("modules are stretches of rows, chains of one child are one label", () => {
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
