/** How urgent something is, and the colour that says so. */

const URGENCY: Record<string, number> = { page: 3, warn: 2, note: 1 };

export function tone(severity: string): "critical" | "warning" | "note" {
  const urgency = URGENCY[severity] ?? 2;
  return urgency === 3 ? "critical" : urgency === 2 ? "warning" : "note";
}

/** The most urgent one, and of several that are equally urgent the first. */
export function mostUrgent<Found extends { severity: string; step: number }>(
  found: readonly Found[],
): Found | undefined {
  return [...found].sort((a, b) => (URGENCY[b.severity] ?? 2) - (URGENCY[a.severity] ?? 2) || a.step - b.step)[0];
}

/** By step: the order in which screens count incidents. */
export function inOrder<Found extends { step: number }>(found: readonly Found[]): Found[] {
  return [...found].sort((a, b) => a.step - b.step);
}
