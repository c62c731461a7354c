/** One icon and one colour for each severity, on every screen. */

import type { Severity } from "../severity";

const SHAPES: Record<Severity, string> = {
  page: "M8 2h8l6 6v8l-6 6H8l-6-6V8zM11 6.500v7h2v-7zm0 9v2h2v-2z",
  warn: "M12 2 23 21H1zM11 9v6h2V9zm0 7.500v2h2v-2z",
  note: "M12 2a10 10 0 1 0 0 20 10 10 0 0 0 0-20zM11 6.500v2h2v-2zm0 4v7h2v-7z",
};

export function SeverityIcon(props: { severity: Severity }) {
  return (
    <svg class={`severity is-${props.severity}`} viewBox="0 0 24 24" aria-hidden="true" data-severity={props.severity}>
      <path d={SHAPES[props.severity]} fill-rule="evenodd" />
    </svg>
  );
}
