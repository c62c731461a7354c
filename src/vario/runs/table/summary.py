"""One run in a table of many: everything its columns can show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from vario.runs.findings.check import known_incidents
from vario.runs.notes.notes import NO_NOTE, RunNote
from vario.runs.reader import RunReader
from vario.runs.views.status.brief import Brief, read_brief


@dataclass(frozen=True)
class RunSummary:
    """One run."""

    run: str
    """What identifies it where it is shown: a path."""
    name: str
    group: str | None
    """Shared by runs that one process started one after another."""
    brief: Brief
    incidents: Counter[str] = field(default_factory=Counter)
    """How many, by severity."""
    id: str | None = None
    note: RunNote = NO_NOTE
    """What people say about it."""

    @property
    def title(self) -> str:
        """The name it was given, or its folder's."""
        return self.note.title or self.name

    @property
    def seconds(self) -> float | None:
        """How long it trained; None while it trains, or if it died without writing it."""
        return None if self.brief.ended is None else max(0.0, self.brief.ended - self.brief.started)

    @property
    def memory_bytes(self) -> float | None:
        """The most memory used: of the device if known, else of the process."""
        for start in ("device_memory_peak_bytes", "process_memory_bytes"):
            peaks = [course.highest for name, course in self.brief.numbers.items() if name.startswith(start)]
            if peaks:
                return max(peaks)
        return None


def read_summary(run: RunReader, label: str) -> RunSummary:
    """Read one run; each of its files once."""
    severities = Counter(incident.severity for incident in known_incidents(run))
    return RunSummary(label, run.name, run.group, read_brief(run), Counter(severities), run.id)
