/** How urgent something is: note, warn or page, as everywhere in vario. */

import type { Incident } from "./api";
import { plural } from "./format";

/** What charts and heat maps draw for an incident, or for a mark like one. */
export type Mark = Pick<Incident, "step" | "severity" | "title" | "place" | "targets" | "series">;

export type Severity = Incident["severity"];

/** Least urgent first. */
export const SEVERITIES: readonly Severity[] = ["note", "warn", "page"];

/** The first of the most urgent ones. */
export function mostUrgent<Found extends { severity: Severity; step: number }>(
  found: readonly Found[],
): Found | undefined {
  const urgency = (one: Found) => SEVERITIES.indexOf(one.severity);
  return [...found].sort((a, b) => urgency(b) - urgency(a) || a.step - b.step)[0];
}

/** How many need attention; notes are counted separately. */
export function countAlerts(found: readonly { severity: Severity }[]): { alerts: number; notes: number } {
  const notes = found.filter(({ severity }) => severity === "note").length;
  return { alerts: found.length - notes, notes };
}

/** The counts as text: 2 alerts, 1 note. */
export function alertsText(found: readonly { severity: Severity }[]): string {
  const { alerts, notes } = countAlerts(found);
  const parts = [alerts || !notes ? plural(alerts, "alert") : "", notes ? plural(notes, "note") : ""];
  return parts.filter(Boolean).join(", ");
}

/** Sorted by step: the order in which screens number incidents. */
export function inOrder<Found extends { step: number }>(found: readonly Found[]): Found[] {
  return [...found].sort((a, b) => a.step - b.step);
}
