"""Publishes incidents in a file for Prometheus."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from vario.core.errors import ConfigError
from vario.core.exposition import Sample, family
from vario.notices.message import Message
from vario.notices.secrets import check_text, reveal

REFRESH_SECONDS = 15.0
"""The longest time between two updates of the last step in the file."""


class Prometheus:
    """A file for node_exporter's textfile collector: incidents, alerts and the last step, replaced atomically."""

    name: ClassVar[str] = "prometheus"
    refresh_seconds: ClassVar[float] = REFRESH_SECONDS

    def __init__(self, options: str, rank: int | None = None) -> None:
        path = Path(reveal(options, "notify.prometheus"))
        # Ranks that report their own incidents must not overwrite each other's file.
        self._path = path if rank is None else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
        if not path.parent.is_dir():
            raise ConfigError(f"notify.prometheus: no folder '{path.parent}'")
        self._labels = {} if rank is None else {"rank": str(rank)}
        self._incidents: Counter[tuple[str, str, str]] = Counter()
        self._alerts: Counter[tuple[str, str]] = Counter()
        self._last_incident: dict[str, int] = {}
        self._last_step: dict[str, int] = {}

    @staticmethod
    def check(options: Any) -> None:
        """Raise ConfigError for a path the collector would ignore."""
        check_text(options, "notify.prometheus", "the path of a .prom file")
        if not options.startswith("env:") and not options.endswith(".prom"):
            raise ConfigError(f"notify.prometheus: expected a path that ends with .prom, got '{options}'")

    @staticmethod
    def shown(options: Any) -> str:
        """Return the path."""
        return str(options)

    def send(self, message: Message) -> None:
        """Count the incident and replace the file."""
        incident, run = message.incident, message.run
        self._incidents[run, incident.severity, incident.lead.rule] += 1
        self._alerts.update((run, alert.rule) for alert in incident.alerts)
        self._last_incident[run] = incident.step
        self._write()

    def refresh(self, run: str, step: int) -> None:
        """Update the last step."""
        if self._last_step.get(run) != step:
            self._last_step[run] = step
            self._write()

    def _write(self) -> None:
        incidents = [
            ({"run": run, "severity": severity, "rule": rule, **self._labels}, count)
            for (run, severity, rule), count in sorted(self._incidents.items())
        ]
        alerts = [
            ({"run": run, "rule": rule, **self._labels}, count) for (run, rule), count in sorted(self._alerts.items())
        ]
        lines = [
            *family("incidents_total", "counter", "Incidents sent, by severity and leading rule.", incidents),
            *family("alerts_total", "counter", "Alerts in these incidents, by rule.", alerts),
            *family(
                "last_incident_step", "gauge", "Step at which the last incident began.", self._of(self._last_incident)
            ),
            *family("last_step", "gauge", "Last step recorded.", self._of(self._last_step)),
        ]
        # The collector may read at any time: it sees either the whole new file or the old one.
        half = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        half.write_text("\n".join(lines) + "\n", encoding="utf8")
        os.replace(half, self._path)

    def _of(self, steps: Mapping[str, int]) -> list[Sample]:
        return [({"run": run, **self._labels}, step) for run, step in steps.items()]
