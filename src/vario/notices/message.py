"""The message that is sent: an incident, its run, and the text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vario.rules.api.alerts import Incident
from vario.rules.api.wording import in_one_line

MOST_ALERTS = 10
"""The most alerts listed in the long text."""


@dataclass(frozen=True)
class Message:
    """One incident of one run."""

    incident: Incident
    run: str
    """The run's name."""

    @property
    def title(self) -> str:
        """The subject: severity, run, step and what was found."""
        incident = self.incident
        urgent = incident.raised_by or incident.lead
        step = incident.step if incident.raised_by is None else urgent.step
        return " ".join(f"[vario] {incident.severity}: {self.run}, step {step}: {urgent.label_or_rule}".split())

    @property
    def line(self) -> str:
        """The incident in one line."""
        return " ".join(f"{self.run}, {in_one_line(self.incident)}".split())

    @property
    def text(self) -> str:
        """The incident, what to do next, and its alerts."""
        incident = self.incident
        lines = [self.line, "", f"Next: {incident.advice}", "", "Alerts:"]
        for alert in incident.alerts[:MOST_ALERTS]:
            rank = "" if alert.rank is None else f", rank {alert.rank}"
            lines.append(f"  step {alert.step}{rank}: {alert.text} [{alert.label_or_rule}, {alert.severity}]")
        if len(incident.alerts) > MOST_ALERTS:
            lines.append(f"  and {len(incident.alerts) - MOST_ALERTS} more")
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """Return the incident as stored in the run, plus `run` and `text`."""
        return {"run": self.run, "text": self.line, **self.incident.to_json()}
