"""Findings of the rules as terminal output."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from vario.rules.api.alerts import Alert, Incident
from vario.rules.api.wording import place_of
from vario.runs.findings.check import Check
from vario.runs.findings.diagnosis_text import source_text

STYLES = {"page": "bold red", "warn": "yellow", "note": "cyan"}
FOLLOWERS_SHOWN = 6


def render_check(name: str, result: Check, every_alert: bool = False) -> RenderableType:
    """Render each incident with its alerts, or a line that says there are none, and whether rules were replayed."""
    num_rules = len(result.rules)
    looked = f"{num_rules} rule{'s' if num_rules > 1 else ''} over {result.num_steps} steps of {name}"
    blocks: list[RenderableType] = []
    if not result.incidents:
        quiet = f", plus {len(result.alerts)} notes for the report" if result.alerts else ""
        blocks.append(Text(f"Nothing found: {looked}{quiet}.", style="green"))
    for incident in result.incidents:
        blocks += [incident_block(incident), Text()]
    if result.incidents:
        count = len(result.incidents)
        blocks.append(Text(f"{count} incident{'s' if count > 1 else ''}: {looked}.", style="dim"))
    blocks.append(Text(source_text(result), style="dim"))
    if every_alert and result.alerts:
        blocks += [Text(), alerts_table(result.alerts)]
    return Group(*blocks)


def incident_block(incident: Incident) -> RenderableType:
    """Render one incident: what and where, likely cause, next action, and consequences."""
    lead = incident.lead
    rank = "" if incident.rank is None else f", rank {incident.rank}"
    heading = Text(f"step {lead.step}{rank}: {place_of(lead)}", style=STYLES[incident.severity])
    heading.append(f"  {lead.label_or_rule} ({lead.kind}, {incident.severity})", style="dim")
    table = Table.grid(padding=(0, 2))
    table.add_row("seen", Text(lead.text))
    if incident.raised_by is not None:
        table.add_row("then", Text(_short(incident.raised_by)))
    table.add_row("cause", Text(incident.cause))
    table.add_row("next", Text(incident.advice))
    others = [alert for alert in incident.alerts if alert not in (lead, incident.raised_by)]
    for position, alert in enumerate(others[:FOLLOWERS_SHOWN]):
        table.add_row("" if position else "also", Text(_short(alert)))
    if len(others) > FOLLOWERS_SHOWN:
        table.add_row("", Text(f"and {len(others) - FOLLOWERS_SHOWN} more up to step {incident.last_step}"))
    return Group(heading, Padding(table, (0, 0, 0, 2)))


def alerts_table(alerts: Sequence[Alert]) -> RenderableType:
    """Render one line per alert."""
    table = Table("step", "rank", "rule", "severity", "what", box=None, pad_edge=False)
    for alert in alerts:
        rank = "-" if alert.rank is None else str(alert.rank)
        table.add_row(str(alert.step), rank, alert.label_or_rule, alert.severity, Text(alert.text))
    return table


def _short(alert: Alert) -> str:
    rank = "" if alert.rank is None else f", rank {alert.rank}"
    return f"step {alert.step}{rank}: {alert.text} [{alert.label_or_rule}]"
