/** Groups runs that one process started one after another, as in a grid search: one line in the list until unfolded. */

import type { RunRow } from "../api";

export interface Line {
  row: RunRow;
  /** How many runs this line represents, or starts. */
  size: number;
  isOpen: boolean;
  /** Whether it is below the first line of its group. */
  isInside: boolean;
}

/** Active and failed runs matter more than the rest. */
const URGENT = ["running", "stalled", "crashed", "interrupted"];

/** The lines to show: a group is at the position of its first row. */
export function fold(rows: RunRow[], open: ReadonlySet<string>): Line[] {
  const groups = new Map<string, RunRow[]>();
  for (const row of rows) {
    const key = keyOf(row);
    const members = groups.get(key);
    if (members) members.push(row);
    else groups.set(key, [row]);
  }
  return [...groups].flatMap(([key, members]) => {
    const size = members.length;
    if (size === 1) return [{ row: members[0]!, size, isOpen: false, isInside: false }];
    if (!open.has(key)) return [{ row: asOne(members), size, isOpen: false, isInside: false }];
    return members.map((row, nth) => ({ row, size: nth ? 1 : size, isOpen: !nth, isInside: nth > 0 }));
  });
}

export function keyOf(row: RunRow): string {
  return row.group ? `group ${row.group}` : `run ${row.run}`;
}

function asOne(members: RunRow[]): RunRow {
  const states = members.map((row) => row.state);
  const total = (count: (row: RunRow) => number) => members.reduce((sum, row) => sum + count(row), 0);
  return {
    ...members[0]!,
    state: URGENT.find((state) => states.includes(state)) ?? states[0]!,
    incidents: {
      note: total((row) => row.incidents.note),
      warn: total((row) => row.incidents.warn),
      page: total((row) => row.incidents.page),
    },
  };
}
