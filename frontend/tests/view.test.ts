import assert from "node:assert/strict";
import { test } from "node:test";
import { alertsText, countAlerts } from "../src/severity";
import { formatSeries, formatView, near, NONE, parseSeries, parseView, START, type View } from "../src/view";

test("a view comes back from its address as it was", () => {
  const view: View = {
    run: "deeper/a run & more",
    screen: "series",
    quantity: "gradient",
    statistic: "norm",
    rank: "spread",
    first: 0,
    last: 1200,
    series: ["gradient|layers.0.weight|norm", "scalar|loss|value"],
    runs: ["b", "c/d"],
    log: true,
    smooth: 0.6,
    x: "time",
    only: "attn weight",
    closed: ["layers.0", "layers.1"],
    colour: "change",
    table: true,
    lately: "50",
    top: "20",
    incident: 2,
    theme: "dark",
    list: "charts",
    find: "big",
    which: "ended",
    columns: ["lr", "val_loss:best"],
    sort: "-val_loss:best",
    where: "lr > 0.001 and state = finished",
    by: "width",
    tint: "lr",
    pins: ["a"],
    hidden: ["b", "c"],
    chosen: ["d"],
    numbers: ["val_loss"],
    draw: ["val_loss|log|0.6|wide"],
    best: true,
    along: "epoch",
    result: "val_loss:best",
    setting: "lr",
  };
  assert.deepEqual(parseView(formatView(view)), view);
});

test("what is as it starts stays out of the address", () => {
  assert.equal(formatView(START), "./");
  assert.equal(formatView({ ...START, run: "a", first: 0 }), "?run=a&first=0");
});

test("a range has fractions, except over steps", () => {
  const range = (address: string) => [parseView(address).first, parseView(address).last];
  assert.deepEqual(range("?list=charts&along=epoch&first=0.25&last=1.5e-1"), [0.25, 0.15]);
  assert.deepEqual(range("?list=charts&along=time&first=0.5&last=3"), [0.5, 3]);
  assert.deepEqual(range("?run=a&screen=series&x=time&first=1700000000.5&last=1e999"), [1700000000.5, null]);
  assert.deepEqual(range("?list=charts&first=0.25&last=4"), [null, 4]);
  assert.deepEqual(range("?run=a&screen=series&first=0.25&last=4"), [null, 4]);
  assert.deepEqual(range("?run=a&x=time&along=epoch&first=0.25&last=4"), [null, 4]);
  const tiny = { ...START, list: "charts" as const, along: "epoch", first: 1e-7, last: 0.5 };
  assert.deepEqual(parseView(formatView(tiny)), tiny);
});

test("nonsense in an address is left out", () => {
  const view = parseView("?screen=nowhere&first=1e9x&last=&smooth=7&x=sideways&theme=pink&log=yes");
  assert.deepEqual(view, { ...START, smooth: 0.99 });
});

test("a series name keeps a target that has bars in it", () => {
  const name = { quantity: "scalar", target: "a|b", statistic: "value" };
  assert.deepEqual(parseSeries(formatSeries(name)), name);
  assert.deepEqual(parseSeries("loss"), { quantity: "scalar", target: "loss", statistic: "value" });
  assert.deepEqual(parseSeries("gradient|head.weight"), { quantity: "gradient", target: "head.weight", statistic: "" });
});

test("that no series is wanted can be said, and is another address than saying nothing", () => {
  const none = { ...START, run: "r", series: [NONE] };
  assert.equal(formatView(none), "?run=r&series=");
  assert.deepEqual(parseView(formatView(none)), none);
  assert.deepEqual(parseView("?run=r").series, []);
});

test("around a step some columns are shown, however seldom was measured", () => {
  assert.deepEqual(near(100, 1), { first: 60, last: 140 });
  assert.deepEqual(near(1340, 50), { first: 840, last: 1840 });
  assert.deepEqual(near(10, 50), { first: 0, last: 510 });
});

test("notes are no alerts", () => {
  const found = (["page", "warn", "note", "note"] as const).map((severity) => ({ severity }));
  assert.deepEqual(countAlerts(found), { alerts: 2, notes: 2 });
  assert.equal(alertsText(found), "2 alerts, 2 notes");
  assert.equal(alertsText(found.slice(0, 1)), "1 alert");
  assert.equal(alertsText(found.slice(3)), "1 note");
});
