/** What is looked at. All of it is in the address, so that an address can be shared. */

export const SCREENS = ["home", "series", "changes", "alerts", "ranks", "compare", "model", "settings"] as const;
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
  /** QUANTITY|TARGET|STATISTIC, any number; NONE alone: none is wanted, not even those a screen begins with. */
  series: string[];
  /** Other runs shown with this one. */
  runs: string[];
  log: boolean;
  smooth: number;
  x: "step" | "time";
  /** Only targets whose name has this in it. */
  only: string;
  /** Modules of the heat map that are folded into one row; with `!` those that are not, though they would be. */
  closed: string[];
  /** Colour by value, or by how far a row is from its own usual. */
  colour: "value" | "change";
  /** The heat map as a table. */
  table: boolean;
  /** Of what changed: how many steps are lately, and how many series are shown; empty as fits. */
  lately: string;
  top: string;
  /** Which incident is explained, counted by step; null: the most urgent. */
  incident: number | null;
  theme: "" | "light" | "dark";
}

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
};

/** The view an address shows; what is not understood is left out. */
export function parseView(search: string): View {
  const query = new URLSearchParams(search);
  const text = (name: string) => query.get(name) ?? "";
  const screen = text("screen") as Screen;
  return {
    run: text("run"),
    screen: SCREENS.includes(screen) ? screen : "home",
    quantity: text("quantity"),
    statistic: text("statistic"),
    rank: text("rank") || "all",
    first: wholeNumber(query.get("first")),
    last: wholeNumber(query.get("last")),
    series: query.getAll("series"),
    runs: query.getAll("runs"),
    log: text("log") === "1",
    smooth: between(Number(text("smooth")), 0, 0.99),
    x: text("x") === "time" ? "time" : "step",
    only: text("only"),
    closed: query.getAll("closed"),
    colour: text("colour") === "change" ? "change" : "value",
    table: text("table") === "1",
    lately: /^\d+$/.test(text("lately")) ? text("lately") : "",
    top: /^\d+$/.test(text("top")) ? text("top") : "",
    incident: wholeNumber(query.get("incident")),
    theme: text("theme") === "light" || text("theme") === "dark" ? (text("theme") as View["theme"]) : "",
  };
}

/** The query string of a view: only what differs from the start, so that addresses stay short. */
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

function wholeNumber(text: string | null): number | null {
  return text !== null && /^-?\d+$/.test(text) ? Number(text) : null;
}

function between(value: number, low: number, high: number): number {
  return Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : low;
}

/** Some steps before, some after; of what is measured now and then, some measured ones. */
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
