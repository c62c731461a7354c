/** What the server answers, as docs/dashboard.md has it. A number that is not finite comes as null. */

export type Maybe = number | null;
/** page: look now; warn: look today; note: good to know. */
export type Severity = string;

export interface RunRow {
  run: string;
  name: string;
  /** The same in runs that one process made one after the other. */
  group: string | null;
  state: string;
  started: Maybe;
  ended: Maybe;
  step: Maybe;
  total_steps: Maybe;
  progress: Maybe;
  eta_seconds: Maybe;
  loss: Maybe;
  /** Whether vario found the loss itself: nobody logged one. */
  loss_is_found?: boolean;
  spark: Maybe[];
  critical: number;
  warning: number;
  world_size: Maybe;
  host: string | null;
  error: string | null;
  /** Whether more than its header was read; of very many runs the rest follows by events. */
  is_read: boolean;
}

export interface RunList {
  folder: string;
  runs: RunRow[];
  cursor: string;
  left_out: { path: string; error: string }[];
}

export interface Vital {
  name: string;
  /** The scalar it is read from, where it is one; a series otherwise. */
  target?: string;
  series?: string;
  value: Maybe;
  spark: Maybe[];
  unit: string;
  /** A loss that vario found itself: nobody logged one. */
  is_found?: boolean;
}

export interface Quantity {
  name: string;
  num_targets: number;
  statistics: string[];
  default_statistic: string;
  steps: number;
  every: Maybe;
}

export interface Incident {
  step: number;
  first_step?: number;
  last_step?: number;
  rule: string;
  severity: Severity;
  place: string | null;
  rank: Maybe;
  scope: string | null;
  cause: string | null;
  title: string;
  text: string;
  next: string | null;
  num_alerts: number;
  targets: string[];
  /** quantity|target|statistic, where one series shows it best. */
  series: string | null;
}

export interface Alert {
  step: number;
  rank: Maybe;
  rule: string;
  severity: Severity;
  quantity: string | null;
  target: string | null;
  text: string;
  place: string | null;
  series: string | null;
}

/** One link of the chain from the first cause to what it led to. */
export interface ChainLink {
  step: number;
  rank: Maybe;
  target: string | null;
  quantity?: string | null;
  rule: string;
  text: string;
  series: string | null;
}

export interface RunHome {
  run: string;
  name: string;
  path: string;
  state: string;
  error: string | null;
  started: Maybe;
  ended: Maybe;
  step: Maybe;
  total_steps: Maybe;
  progress: Maybe;
  eta_seconds: Maybe;
  steps_per_second: Maybe;
  world_size: Maybe;
  ranks: (number | { rank: number })[];
  host: string | null;
  command: string | null;
  sessions: { first_step: number; started: Maybe }[];
  vital: Vital[];
  quantities: Quantity[];
  incidents: Incident[];
  parts_off: number;
  /** Of several ranks the one that failed first. */
  failed_rank: Maybe;
  dropped_steps: number;
  cursor: string | null;
}

export interface HeatHead {
  quantity: string;
  statistic: string;
  rank: number | string;
  targets: string[];
  groups: number[];
  first: number[];
  last: number[];
  rows: number;
  columns: number;
  is_outline: boolean;
  /** Only targets whose names have these words were asked for. */
  search?: string;
  low: Maybe;
  high: Maybe;
  step?: Maybe;
  difference?: "ratio" | "minus";
}

export interface Curve {
  run: string;
  quantity: string;
  target: string;
  statistic: string;
  rank: number | string;
  steps: number[];
  low: Maybe[];
  high: Maybe[];
  last: Maybe[];
  bad: (boolean | number)[];
  times: Maybe[];
  is_whole: boolean;
}

export interface Change {
  quantity: string;
  target: string;
  statistic: string;
  kind: string;
  before: Maybe;
  after: Maybe;
  step: Maybe;
  score: Maybe;
  text: string;
  spark: Maybe[];
  num_alike: number;
  num_targets: Maybe;
  same: string[] | number | null;
}

export interface Changes {
  changes: Change[];
  num_series: number;
  last_step: Maybe;
  window_steps: Maybe;
}

export interface Alerts {
  incidents: Incident[];
  alerts: Alert[];
  /** How many there are; of very many only the first are told. */
  num_alerts: number;
  diagnosis: { paragraph: string; chain: ChainLink[] } | null;
  source: "recorded" | "replayed" | string;
}

export interface RankState {
  rank: number;
  host: string | null;
  state: string;
  last_step: Maybe;
  error: string | null;
  coordinates: Record<string, number> | null;
  ended: Maybe;
  /** The rank whose failure took this one down. */
  victim_of: Maybe;
}

export interface Slowest {
  rank: number;
  host: string;
  /** How much longer than usual: 0.5 is half as much again. */
  share: number;
  seconds: number;
  usual_seconds: number;
  by: string;
}

export interface Desync {
  step: number;
  target: string;
  quantity: string;
  /** Those that hold something else than most do. */
  ranks: number[];
}

export interface Ranks {
  ranks: RankState[];
  curves: Omit<Curve, "run">[];
  slowest: Slowest | null;
  desync: Desync | null;
}

/** One tensor at one step, in both runs. */
export interface Place {
  step: number;
  quantity: string;
  target: string;
  statistic: string;
  a: Maybe;
  b: Maybe;
  size: Maybe;
  noise: Maybe;
}

export interface Differing {
  quantity: string;
  target: string;
  statistic: string;
  a: Maybe;
  b: Maybe;
  size: Maybe;
  deviations: Maybe;
}

export interface Comparison {
  parting: Place | null;
  first_unequal: Place | null;
  text: string;
  num_steps: number;
  num_targets: number;
  differences: Differing[];
  unmatched: string[];
  settings: Record<string, { a: string | null; b: string | null }>;
}

export interface Parameter {
  name: string;
  shape: number[];
  dtype: string;
  trainable: boolean;
  shared_with: string[];
  count: number;
  latest: Record<string, Maybe>;
}

export interface Module {
  name: string;
  class: string;
  depth: number;
  num_parameters: number;
  own_parameters: number;
  share: Maybe;
  parameters: Parameter[];
  latest: Record<string, Maybe>;
}

export interface Model {
  modules: Module[];
  num_parameters: number;
  memory: { predicted: Maybe; measured: Maybe; of: string } | null;
}

export interface Settings {
  config: Record<string, unknown>;
  versions: Record<string, string>;
  command: string | null;
  path: string;
  host: string | null;
  engine: string | null;
  parts_off: Record<string, unknown>[];
  dropped_steps: Maybe;
  sessions: { first_step: number; started: Maybe }[];
  mesh: Record<string, unknown>;
  ranks: RankState[];
  world_size: Maybe;
}
