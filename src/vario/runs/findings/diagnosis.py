"""What went wrong first in a run, and why: the first cause over all ranks, from a replay or from stored alerts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vario.core.errors import ConfigError
from vario.rules.api.alerts import SEVERITIES, Incident
from vario.runs.findings.diagnosis_text import diagnosis_text, others_text
from vario.runs.findings.onset import Onset, onset_at
from vario.runs.findings.replay import check, rules_of, warn_of_failure
from vario.runs.findings.stored_alerts import read_incidents
from vario.runs.reader import RunReader
from vario.runs.views.quantity_extent import rows_bytes

REPLAYED_BYTES = 32 << 20
"""Rows of a run up to this size are replayed: a few seconds. Above it the stored alerts are read."""

Source = Literal["replay", "stored"]


@dataclass(frozen=True)
class Diagnosis:
    """The first cause of what went wrong in a run, or what was looked at where nothing did. Its `str` is the text."""

    name: str
    path: Path
    source: Source
    """Whether rules were replayed over the rows, or the alerts stored while it ran were read."""
    num_bytes: int
    """Size of the run's rows, which decides it."""
    rules: tuple[str, ...]
    """What was asked of the rows; of stored alerts, the rules it was watched with."""
    ranks: tuple[int, ...]
    quantities: tuple[str, ...]
    num_targets: int
    num_steps: int
    last_step: int | None
    incidents: tuple[Incident, ...]
    """All of them, by step."""
    first: Incident | None
    """The first of the most urgent ones."""
    onset: Onset | None
    """Of the first cause's first NaN or Inf: what that tensor was before, whether its inputs were finite, and what went
    bad next; None where it led to none."""

    def __str__(self) -> str:
        return " ".join([diagnosis_text(self), *others_text(self)])


def diagnose(run: RunReader, source: Source | None = None) -> Diagnosis:
    """Find the first cause of what went wrong in a run, over all its ranks.

    Rules are replayed over the rows where these are small (32 MiB); of larger runs the stored alerts are read.
    `source` forces either.
    """
    if source not in (None, "replay", "stored"):
        raise ConfigError(f"source: expected 'replay', 'stored' or None, got {source!r}")
    source = source or ("replay" if rows_bytes(run) <= REPLAYED_BYTES else "stored")
    incidents = read_incidents(run) if source == "stored" else check(run, failed=warn_of_failure).incidents
    return diagnosis_of(run, incidents, source)


def diagnosis_of(run: RunReader, incidents: Sequence[Incident], source: Source) -> Diagnosis:
    """What incidents that were found already say about the first cause."""
    ordered = tuple(sorted(incidents, key=lambda incident: incident.step))
    first = first_cause(ordered)
    quantities = run.quantities("all") if run.ranks else []
    told = run.config.get("rules") or {}
    return Diagnosis(
        name=run.name,
        path=run.path,
        source=source,
        num_bytes=rows_bytes(run),
        rules=tuple(told) if source == "stored" else tuple(found.rule.name for found in rules_of(run)),
        ranks=tuple(run.ranks),
        quantities=tuple(quantities),
        num_targets=sum(len(run.targets(quantity)) for quantity in quantities),
        # All steps have plain numbers, except in runs of other tools.
        num_steps=len(run.steps("scalar" if "scalar" in quantities else quantities[0], "all")) if quantities else 0,
        last_step=run.last_step,
        incidents=ordered,
        first=first,
        onset=None if first is None else _onset(run, first),
    )


def first_cause(incidents: tuple[Incident, ...]) -> Incident | None:
    """The first of the most urgent incidents: an early note does not hide a later page."""
    return max(incidents, key=lambda found: (SEVERITIES.index(found.severity), -found.step), default=None)


def _onset(run: RunReader, incident: Incident) -> Onset | None:
    for alert in sorted(incident.alerts, key=lambda found: found.step):
        if alert.rule != "non_finite" or alert.target is None:
            continue
        for rank in run.ranks if alert.rank is None else [alert.rank]:
            if alert.quantity in run.quantities(rank):
                return onset_at(run, alert.step, alert.micro_step, rank, alert.quantity, alert.target)
    return None
