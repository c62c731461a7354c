"""What is sent: an incident, the run it belongs to, and both in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vario.rules.api.alerts import Incident
from vario.rules.api.wording import in_one_line

MOST_ALERTS = 10
"""So many alerts of an incident stand in a long text."""


@dataclass(frozen=True)
class Message:
    """One incident of one run."""

    incident: Incident
    run: str
    """The run's name."""

    @property
    def title(self) -> str:
        """A few words: how urgent, which run, when, which rule."""
        incident = self.incident
        return " ".join(f"[vario] {incident.severity}: {self.run}, step {incident.step}: {incident.lead.rule}".split())

    @property
    def line(self) -> str:
        """What happened, in one line."""
        return " ".join(f"{self.run}, {in_one_line(self.incident)}".split())

    @property
    def text(self) -> str:
        """What happened, what to do next, and the alerts it is made of."""
        incident = self.incident
        lines = [self.line, "", f"Next: {incident.advice}", "", "Alerts:"]
        for alert in incident.alerts[:MOST_ALERTS]:
            rank = "" if alert.rank is None else f", rank {alert.rank}"
            lines.append(f"  step {alert.step}{rank}: {alert.text} [{alert.rule}, {alert.severity}]")
        if len(incident.alerts) > MOST_ALERTS:
            lines.append(f"  and {len(incident.alerts) - MOST_ALERTS} more")
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """The incident as it stands in the run's files, and with it `run` and `text`."""
        return {"run": self.run, "text": self.line, **self.incident.to_json()}
