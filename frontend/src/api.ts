// Made by tools/make_docs.py from the types in src/vario/web/bodies; edit those, then run `make docs`.

/** What the server answers. */

/** A number that is not finite comes as null. */
export type Maybe = number | null;

/** One finding of one rule. */
export interface Alert {
  step: number;
  rule: string;
  kind: "exact" | "limit" | "relative";
  severity: "page" | "warn" | "note";
  rank: Maybe;
  quantity: string;
  target: string | null;
  statistic: string;
  value: Maybe;
  /** The low end of the usual range. */
  low: Maybe;
  /** The high end of the usual range. */
  high: Maybe;
  place: string | null;
  text: string;
  /** quantity|target|statistic, where one series shows it. */
  series: string | null;
}

/** Alerts and incidents, and the first cause. */
export interface Alerts {
  incidents: Incident[];
  alerts: Alert[];
  /** How many there are; of very many only the first are told. */
  num_alerts: number;
  diagnosis: Cause | null;
  source: "recorded" | "replayed";
}

/** The run is over; the stream ends. */
export interface Bye {
  state: string;
}

/** The first cause, and what it led to. */
export interface Cause {
  paragraph: string;
  chain: ChainLink[];
}

/** One link of the chain from the first cause to what it led to. */
export interface ChainLink {
  step: number;
  rank: Maybe;
  target: string | null;
  quantity: string;
  rule: string;
  text: string;
  series: string | null;
}

/** A series that changed lately. */
export interface Change {
  quantity: string;
  target: string;
  statistic: string;
  /** non-finite, constant, level, trend, spike or spread. */
  kind: string;
  before: Maybe;
  after: Maybe;
  /** Where it began. */
  step: number;
  score: Maybe;
  text: string;
  spark: Maybe[];
  /** How many targets of this quantity changed like this, where most did. */
  num_alike: number;
  num_targets: number;
  /** Other series that are the same thing: `quantity of target`. */
  same: string[];
}

/** What changed lately, most first. */
export interface Changes {
  changes: Change[];
  num_series: number;
  last_step: Maybe;
  /** How many steps count as lately; null where it depends on how often a quantity is watched. */
  window_steps: Maybe;
}

/** Where two runs part, and what differs most. */
export interface Comparison {
  /** Where they differ by more than noise for the first time. */
  parting: Place | null;
  /** Where they are not equal to the bit for the first time. */
  first_unequal: Place | null;
  text: string;
  num_steps: number;
  num_targets: number;
  /** none, rounding or own: what was taken for noise. */
  noise: string;
  renamed: string;
  differences: Differing[];
  unmatched: string[];
  settings: Record<string, SettingPair>;
}

/** A curve, and the run it belongs to. */
export interface Curve {
  quantity: string;
  target: string;
  statistic: string;
  rank: number | string;
  /** The last step of each stretch. */
  steps: number[];
  /** The lowest value of each stretch. */
  low: Maybe[];
  /** The highest value of each stretch. */
  high: Maybe[];
  /** The value at the last step of each stretch. */
  last: Maybe[];
  /** Where a NaN or Inf was counted. */
  bad: boolean[];
  /** Unix seconds at which the last step of each stretch ended. */
  times: Maybe[];
  /** Whether every recorded point is there. */
  is_whole: boolean;
  run: string;
}

/** Where ranks that should hold the same began to differ. */
export interface Desync {
  step: number;
  target: string;
  quantity: string;
  /** What each rank has, by rank. */
  checksums: Record<string, number>;
  /** Those that hold something else than most do. */
  ranks: number[];
}

/** A target that differs at the end. */
export interface Differing {
  quantity: string;
  target: string;
  statistic: string;
  a: Maybe;
  b: Maybe;
  size: Maybe;
  /** In units of how much both vary by themselves. */
  deviations: Maybe;
}

/** What a heat map holds besides its numbers. */
export interface HeatHead {
  quantity: string;
  statistic: string;
  rank: number | string;
  /** In model order; where a row stands for several, the first of them. */
  targets: string[];
  /** How many targets each row stands for. */
  groups: number[];
  /** The first step of each column. */
  first: number[];
  /** The last step of each column, which belongs to it. */
  last: number[];
  rows: number;
  columns: number;
  /** Whether a shorter range of steps may show more. */
  is_outline: boolean;
  /** The smallest magnitude above 0. */
  low: Maybe;
  /** The largest magnitude. */
  high: Maybe;
  /** The last step. */
  step: Maybe;
  /** Only targets whose names have these words were asked for. */
  search?: string;
  /** Of two runs: log10 of the ratio b/a, or b minus a. */
  difference?: "ratio" | "minus";
}

/** A heat map in JSON. */
export interface HeatTable {
  quantity: string;
  statistic: string;
  rank: number | string;
  /** In model order; where a row stands for several, the first of them. */
  targets: string[];
  /** How many targets each row stands for. */
  groups: number[];
  /** The first step of each column. */
  first: number[];
  /** The last step of each column, which belongs to it. */
  last: number[];
  rows: number;
  columns: number;
  /** Whether a shorter range of steps may show more. */
  is_outline: boolean;
  /** The smallest magnitude above 0. */
  low: Maybe;
  /** The largest magnitude. */
  high: Maybe;
  /** The last step. */
  step: Maybe;
  /** Only targets whose names have these words were asked for. */
  search?: string;
  /** Of two runs: log10 of the ratio b/a, or b minus a. */
  difference?: "ratio" | "minus";
  /** Row by row. */
  values: Maybe[][];
  /** Row and column of each NaN or Inf. */
  bad: [number, number][];
}

/** What one cause did. */
export interface Incident {
  /** Where it began. */
  step: number;
  first_step: number;
  last_step: number;
  rule: string;
  severity: "page" | "warn" | "note";
  /** The module or parameter to look at; null where it is not one. */
  place: string | null;
  rank: Maybe;
  scope: "tensor" | "rank" | "global" | "batch";
  cause: string;
  title: string;
  text: string;
  /** What to do next. */
  next: string;
  num_alerts: number;
  targets: string[];
  /** quantity|target|statistic, where one series shows it best. */
  series: string | null;
}

/** Something that looks like a run and cannot be shown. */
export interface LeftOut {
  path: string;
  error: string;
}

/** The body of each event, by the name of the event. */
export interface LiveEvents {
  progress?: Progress;
  heat?: NewColumns;
  points?: NewPoints;
  incident?: Incident;
  runs?: NewRows;
  reset?: Reset;
  problem?: Problem;
  bye?: Bye;
}

/** Bytes at the peak; null where nobody looked. */
export interface Memory {
  predicted: Maybe;
  measured: Maybe;
  of: "device" | "process";
}

/** Modules in model order. */
export interface Model {
  modules: Module[];
  num_parameters: number;
  memory: Memory;
}

/** One module of the model. */
export interface Module {
  class: string;
  name: string;
  depth: number;
  /** How many numbers its parameters have, with all modules inside it. */
  num_parameters: number;
  /** The same without the modules inside it. */
  own_parameters: number;
  /** Of all parameters of the model. */
  share: Maybe;
  parameters: Parameter[];
  /** Its newest numbers, by `quantity|statistic`. */
  latest: Record<string, Maybe>;
}

/** New columns of a heat map. */
export interface NewColumns {
  steps: number[];
  /** Names that are new with this event. */
  targets: string[];
  /** One list a step, in the order of names that the stream has told so far. */
  values: Maybe[][];
  /** Row and column of each NaN or Inf. */
  bad: [number, number][];
  /** All names so far; the first event of a stream has it. */
  order?: string[];
}

/** New points of one curve. */
export interface NewCurve {
  quantity: string;
  target: string;
  statistic: string;
  rank: number | string;
  steps: number[];
  values: Maybe[];
  /** Where a NaN or Inf was counted. */
  bad: boolean[];
  /** Unix seconds at which each step ended. */
  times: Maybe[];
}

/** New points of all curves that were asked for. */
export interface NewPoints {
  curves: NewCurve[];
}

/** What changed in the list of runs. */
export interface NewRows {
  /** Rows that are new or have changed. */
  runs: RunRow[];
  /** Runs that are not there any more. */
  gone: string[];
  /** Whether these are all there are: the server did not know what was seen before. */
  is_whole: boolean;
}

/** One parameter of the model. */
export interface Parameter {
  name: string;
  shape: number[];
  dtype: string | null;
  trainable: boolean;
  shared_with: string[];
  /** How many numbers it has. */
  count: number;
  /** Its newest numbers, by `quantity|statistic`. */
  latest: Record<string, Maybe>;
}

/** A part of the monitor that was switched off, or a quantity that could not be merged. */
export interface PartOff {
  rank: Maybe;
  part: string;
  step: Maybe;
  error: string;
}

/** One tensor at one step, in both runs. */
export interface Place {
  step: number;
  quantity: string;
  /** Its name in the first run. */
  target: string;
  statistic: string;
  a: Maybe;
  b: Maybe;
  /** How far apart: the logarithm of their ratio, or their difference in units of their size. */
  size: Maybe;
  /** The largest difference that was there before. */
  noise: Maybe;
}

/** The run cannot be read; the stream ends. */
export interface Problem {
  error: string;
}

/** How far the run is. */
export interface Progress {
  step: Maybe;
  state: string;
  total_steps: Maybe;
  /** From 0 to 1. */
  progress: Maybe;
  eta_seconds: Maybe;
  steps_per_second: Maybe;
  vital: VitalValue[];
}

/** A quantity that a run has recorded. */
export interface Quantity {
  name: string;
  num_targets: number;
  statistics: string[];
  default_statistic: string;
  /** How many steps have it. */
  steps: number;
  /** It was to be recorded every so many steps. */
  every: number;
}

/** One statistic of one target over stretches of steps. */
export interface RankCurve {
  quantity: string;
  target: string;
  statistic: string;
  rank: number | string;
  /** The last step of each stretch. */
  steps: number[];
  /** The lowest value of each stretch. */
  low: Maybe[];
  /** The highest value of each stretch. */
  high: Maybe[];
  /** The value at the last step of each stretch. */
  last: Maybe[];
  /** Where a NaN or Inf was counted. */
  bad: boolean[];
  /** Unix seconds at which the last step of each stretch ended. */
  times: Maybe[];
  /** Whether every recorded point is there. */
  is_whole: boolean;
}

/** How one rank fares. */
export interface RankState {
  rank: number;
  host: string;
  /**
   * running, finished, interrupted, crashed (it could still say so), died (it could not), stalled, or left: it took
   * part in an earlier session only.
   */
  state: string;
  last_step: Maybe;
  error: string | null;
  /** Where it stands in the mesh. */
  coordinates: Record<string, number>;
  /** Unix seconds, by the clock of its host; None where it could not say. */
  ended: Maybe;
  /** The rank whose failure took this one down: its launcher stopped it, or it lost its peer in a collective. */
  victim_of: Maybe;
}

/** All ranks of a run beside each other. */
export interface Ranks {
  ranks: RankState[];
  world_size: number;
  curves: RankCurve[];
  slowest: Slowest | null;
  desync: Desync | null;
}

/** Why there is no answer. */
export interface Refusal {
  error: string;
  /** The parameter it is about. */
  key: string | null;
}

/** Too much was missed, or the run began anew: ask for everything again. */
export type Reset = Record<string, never>;

/** One run at a glance. */
export interface RunHome {
  step: Maybe;
  total_steps: Maybe;
  /** From 0 to 1. */
  progress: Maybe;
  eta_seconds: Maybe;
  run: string;
  name: string;
  path: string;
  state: string;
  error: string | null;
  started: Maybe;
  ended: Maybe;
  steps_per_second: Maybe;
  world_size: number;
  ranks: number[];
  host: string;
  command: string;
  sessions: Session[];
  vital: Vital[];
  quantities: Quantity[];
  incidents: Incident[];
  /** How many parts of the monitor were switched off, and quantities that could not be merged. */
  parts_off: number;
  /** Of several ranks the one that failed first. */
  failed_rank: Maybe;
  dropped_steps: number;
  cursor: string;
}

/** All runs below the served folder. */
export interface RunList {
  folder: string;
  runs: RunRow[];
  left_out: LeftOut[];
  cursor: string;
}

/** One run in the list. */
export interface RunRow {
  step: Maybe;
  total_steps: Maybe;
  /** From 0 to 1. */
  progress: Maybe;
  eta_seconds: Maybe;
  /** Its path below the served folder; names it in all other requests. */
  run: string;
  name: string;
  /** The same in runs that one process made one after the other. */
  group: string | null;
  state: string;
  /** Unix seconds. */
  started: Maybe;
  ended: Maybe;
  loss: Maybe;
  /** Whether vario found the loss itself: nobody logged one. */
  loss_is_found: boolean;
  /** The course of the loss in few points. */
  spark: Maybe[];
  /** How many incidents have the severity `page`. */
  critical: number;
  /** How many incidents have the severity `warn`. */
  warning: number;
  world_size: number;
  host: string;
  error: string | null;
  /** Whether more than its header was read; of very many runs the rest follows by events. */
  is_read: boolean;
}

/** The curves that were asked for, run by run. */
export interface SeriesAnswer {
  curves: Curve[];
}

/** One start of a run; a resumed run has several. */
export interface Session {
  first_step: number;
  /** Unix seconds. */
  started: Maybe;
}

/** An option or a version that differs; null where a run does not have it. */
export interface SettingPair {
  a: string | null;
  b: string | null;
}

/** What a run was started with, and what went wrong with watching it. */
export interface Settings {
  config: Record<string, unknown>;
  versions: Record<string, string>;
  command: string;
  path: string;
  host: string;
  engine: string | null;
  parts_off: PartOff[];
  dropped_steps: number;
  sessions: Session[];
  mesh: Record<string, number>;
  ranks: RankState[];
  world_size: number;
}

/** The rank that the others wait for. */
export interface Slowest {
  rank: number;
  host: string;
  /** By how much of their time it is slower than the others, at the median: 0.5 is half as much again. */
  share: Maybe;
  seconds: Maybe;
  usual_seconds: Maybe;
  /** The plain number that tells. */
  by: string;
}

/** Names of targets. */
export interface Targets {
  targets: string[];
  /** How many there are; of very many only the first are told. */
  total: number;
}

/** One number and its course. */
export interface Vital {
  name: string;
  /** The plain number behind it. */
  target: string;
  value: Maybe;
  unit: string;
  /** The course in few points, from the first step to the last; NaN where it was not a number. */
  spark: Maybe[];
  /** Whether it is a loss that vario found, and nobody logged. */
  is_found: boolean;
}

/** The newest value of a vital sign. */
export interface VitalValue {
  name: string;
  target: string;
  value: Maybe;
  unit: string;
}

/** The JSON of each address below api/. */
export interface Answers {
  runs: RunList;
  run: RunHome;
  heat: HeatTable;
  series: SeriesAnswer;
  targets: Targets;
  changes: Changes;
  alerts: Alerts;
  ranks: Ranks;
  compare: Comparison;
  "compare/heat": HeatTable;
  model: Model;
  settings: Settings;
}
