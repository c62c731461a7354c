/** The current view. All of it is in the address, so that it can be shared. */

export const SCREENS = [
  "home",
  "series",
  "changes",
  "alerts",
  "ranks",
  "compare",
  "model",
  "settings",
  "figures",
  "precision",
] as const;
export type Screen = (typeof SCREENS)[number];

export interface View {
  /** The run's path below the served folder; empty: the list of runs. */
  run: string;
  screen: Screen;
  quantity: string;
  statistic: string;
  rank: string;
  first: number | null;
  last: number | null;
  /** QUANTITY|TARGET|STATISTIC, any number; NONE alone: none, not even a screen's defaults. */
  series: string[];
  /** Other runs shown with this one. */
  runs: string[];
  log: boolean;
  smooth: number;
  x: "step" | "time";
  /** Only targets whose name matches this. */
  only: string;
  /** Modules of the heat map that are folded into one row; with `!` those that are unfolded although they start folded. */
  closed: string[];
  /** Colour by value, or relative to the row's usual value. */
  colour: "value" | "change";
  /** The heat map as a table. */
  table: boolean;
  /** For the changes screen: how many steps count as recent, and how many series to show; empty: the default. */
  lately: string;
  top: string;
  /** The index, by step, of the explained incident; null: the most urgent. */
  incident: number | null;
  theme: "" | "light" | "dark";
  /** For the list of runs: as a table, as charts, or which settings mattered. */
  list: (typeof LISTS)[number];
  /** Words in a run's name, and which states. */
  find: string;
  which: (typeof WHICH)[number];
  /** Columns of the table; empty: the usual ones. */
  columns: string[];
  /** The column to sort by, with a minus for the highest first. */
  sort: string;
  /** A filter such as `lr > 0.001 and state = finished`. */
  where: string;
  /** The column to group by, and the one that colours runs. */
  by: string;
  tint: string;
  /** Runs that stay on top, that are not shown, and that are selected; ALL alone: all that are shown. */
  pins: string[];
  hidden: string[];
  chosen: string[];
  /** For charts: logged numbers, whether each curve is its best so far, and what they are drawn against. */
  numbers: string[];
  best: boolean;
  along: string;
  /** Charts that are drawn in their own way: `CHART|log or linear|SMOOTHING|wide or empty`. */
  draw: string[];
  /** What the runs are judged by, and the setting whose scatter is shown. */
  result: string;
  setting: string;
}

export const LISTS = ["table", "charts", "effects"] as const;
export const WHICH = ["all", "running", "alerts", "ended", "archived"] as const;
export const ALL = "*";

export const NONE = "";

export const START: View = {
  run: "",
  screen: "home",
  quantity: "",
  statistic: "",
  rank: "all",
  first: null,
  last: null,
  series: [],
  runs: [],
  log: false,
  smooth: 0,
  x: "step",
  only: "",
  closed: [],
  colour: "value",
  table: false,
  lately: "",
  top: "",
  incident: null,
  theme: "",
  list: "table",
  find: "",
  which: "all",
  columns: [],
  sort: "",
  where: "",
  by: "",
  tint: "",
  pins: [],
  hidden: [],
  chosen: [],
  numbers: [],
  best: false,
  along: "",
  draw: [],
  result: "",
  setting: "",
};

/** Parse an address into a view; ignores what it does not know. */
export function parseView(search: string): View {
  const query = new URLSearchParams(search);
  const text = (name: string) => query.get(name) ?? "";
  const run = text("run");
  const screen = SCREENS.find((each) => each === text("screen")) ?? "home";
  const x = text("x") === "time" ? "time" : "step";
  const along = text("along");
  const end = isOverSteps({ run, screen, x, along }) ? wholeNumber : anyNumber;
  return {
    run,
    screen,
    quantity: text("quantity"),
    statistic: text("statistic"),
    rank: text("rank") || "all",
    first: end(query.get("first")),
    last: end(query.get("last")),
    series: query.getAll("series"),
    runs: query.getAll("runs"),
    log: text("log") === "1",
    smooth: between(Number(text("smooth")), 0, 0.99),
    x,
    only: text("only"),
    closed: query.getAll("closed"),
    colour: text("colour") === "change" ? "change" : "value",
    table: text("table") === "1",
    lately: /^\d+$/.test(text("lately")) ? text("lately") : "",
    top: /^\d+$/.test(text("top")) ? text("top") : "",
    incident: wholeNumber(query.get("incident")),
    theme: text("theme") === "light" || text("theme") === "dark" ? (text("theme") as View["theme"]) : "",
    list: LISTS.find((each) => each === text("list")) ?? "table",
    find: text("find"),
    which: WHICH.find((each) => each === text("which")) ?? "all",
    columns: query.getAll("columns"),
    sort: text("sort"),
    where: text("where"),
    by: text("by"),
    tint: text("tint"),
    pins: query.getAll("pins"),
    hidden: query.getAll("hidden"),
    chosen: query.getAll("chosen"),
    numbers: query.getAll("numbers"),
    best: text("best") === "1",
    along,
    draw: query.getAll("draw"),
    result: text("result"),
    setting: text("setting"),
  };
}

/** The query string of a view: only what differs from the defaults, to keep addresses short. */
export function formatView(view: View): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(view)) {
    const start = START[name as keyof View];
    if (Array.isArray(value)) value.forEach((each) => query.append(name, each));
    else if (value !== start && value !== null) query.set(name, value === true ? "1" : String(value));
  }
  const text = query.toString().replaceAll("%7C", "|").replaceAll("%2F", "/").replaceAll("%3A", ":");
  return text ? `?${text}` : "./";
}

/** Whether the range of a view is one of steps, which are whole numbers; epochs, tokens and times need not be. */
export function isOverSteps(view: Pick<View, "run" | "screen" | "x" | "along">): boolean {
  return view.run ? view.screen !== "series" || view.x === "step" : !view.along || view.along === "step";
}

function anyNumber(text: string | null): number | null {
  return text !== null && /^-?\d+(\.\d+)?(e[+-]?\d+)?$/.test(text) && Number.isFinite(Number(text))
    ? Number(text)
    : null;
}

function wholeNumber(text: string | null): number | null {
  return text !== null && /^-?\d+$/.test(text) ? Number(text) : null;
}

function between(value: number, low: number, high: number): number {
  return Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : low;
}

/** A range around a step; for a quantity that is watched rarely, wide enough for some watched steps. */
export function near(step: number, every: number): { first: number; last: number } {
  const reach = Math.max(40, Math.ceil(10 * every));
  return { first: Math.max(0, step - reach), last: step + reach };
}

export interface SeriesName {
  quantity: string;
  target: string;
  statistic: string;
}

export function parseSeries(text: string): SeriesName {
  const first = text.indexOf("|");
  const last = text.lastIndexOf("|");
  if (first < 0) return { quantity: "scalar", target: text, statistic: "value" };
  if (first === last) return { quantity: text.slice(0, first), target: text.slice(first + 1), statistic: "" };
  return { quantity: text.slice(0, first), target: text.slice(first + 1, last), statistic: text.slice(last + 1) };
}

export function formatSeries(name: SeriesName): string {
  return `${name.quantity}|${name.target}|${name.statistic}`;
}
