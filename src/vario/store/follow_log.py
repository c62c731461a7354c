"""What a following process found, in the run's folder `watch/`: the only place it writes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from vario.core.run_format import ALERTS, INCIDENTS
from vario.rules.api.alerts import Alert, Incident
from vario.store.line_files import LineFile, take_back

FOLDER = "watch"


class WatchLog:
    """Writes `watch/alerts.jsonl` and `watch/incidents.jsonl` of a run: one line per finding."""

    def __init__(self, run: Path, first_steps: Sequence[int]) -> None:
        """`first_steps` of the run's sessions: earlier findings about steps that are trained again are removed."""
        folder = run / FOLDER
        self._first_steps = first_steps
        for name in (ALERTS, INCIDENTS):
            if len(first_steps) > 1 and (folder / name).exists():
                take_back(folder / name, first_steps[-1])
        self._alerts = LineFile(folder / ALERTS)
        self._incidents = LineFile(folder / INCIDENTS)

    def add(self, alerts: Iterable[Alert], incidents: Iterable[Incident]) -> None:
        """Write what was found."""
        for alert in alerts:
            self._alerts.append({**alert.to_stored(), "session": self._session(alert.step)})
        for incident in incidents:
            self._incidents.append({**incident.to_stored(), "session": self._session(incident.step)})

    def close(self) -> None:
        """Close the files."""
        self._alerts.close()
        self._incidents.close()

    def _session(self, step: int) -> int:
        """Return the session of a step: the last one that began at or before it."""
        begun = [number for number, first in enumerate(self._first_steps) if first <= step]
        return begun[-1] if begun else 0
