/** How urgent something is, and the colour that says so. */

import type { Incident } from "./api";
import { plural } from "./format";

/** What charts and heat maps draw of an incident, or of something else that is marked like one. */
export type Mark = Pick<Incident, "step" | "severity" | "title" | "place" | "targets" | "series">;

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

/** How many need a look; notes are counted apart. */
export function countAlerts(found: readonly { severity: string }[]): { alerts: number; notes: number } {
  const notes = found.filter(({ severity }) => tone(severity) === "note").length;
  return { alerts: found.length - notes, notes };
}

/** The same in words: 2 alerts, 1 note. */
export function alertsText(found: readonly { severity: string }[]): string {
  const { alerts, notes } = countAlerts(found);
  const parts = [alerts || !notes ? plural(alerts, "alert") : "", notes ? plural(notes, "note") : ""];
  return parts.filter(Boolean).join(", ");
}

/** By step: the order in which screens count incidents. */
export function inOrder<Found extends { step: number }>(found: readonly Found[]): Found[] {
  return [...found].sort((a, b) => a.step - b.step);
}
