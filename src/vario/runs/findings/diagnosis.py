"""What went wrong first in a run, and why: the root cause over all ranks, from the result of `check`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vario.core.errors import ConfigError
from vario.rules.api.alerts import SEVERITIES, Incident
from vario.runs.files.listing_cache import listings_cached
from vario.runs.findings.change_points import ChangePoint, began_with
from vario.runs.findings.check import Check, Source, check, found_check, num_steps, stored_check
from vario.runs.findings.diagnosis_text import began_text, diagnosis_text, others_text
from vario.runs.findings.hypotheses import Hypothesis, hypotheses, telling_apart
from vario.runs.findings.onset import Onset, onset_at
from vario.runs.findings.rank_comparison import has_many_ranks
from vario.runs.findings.rank_verdict import RankVerdict, rank_verdict
from vario.runs.findings.replay import warn_of_failure
from vario.runs.reader import RunReader
from vario.runs.views.status.quantity_size import rows_bytes

REPLAYED_BYTES = 32 << 20
"""Rules are replayed automatically over rows up to this size, which takes a few seconds."""
CONSEQUENCE_STEPS = 50
"""Steps after an incident in which another one may be its consequence."""


@dataclass(frozen=True)
class Diagnosis:
    """The root cause of what went wrong in a run, or what was checked if nothing did. Its `str` is the text."""

    name: str
    path: Path
    source: Source
    """`stored`: found during training. `replay`: found now, over the stored rows."""
    missing: str
    """What rules did not cover during training; empty: nothing."""
    replayed: tuple[str, ...]
    """The rules that ran over the stored rows: all, none, or the ones that compare ranks."""
    num_bytes: int
    """Size of the run's rows."""
    rules: tuple[str, ...]
    """All rules that ran."""
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
    """The first NaN or Inf of the root cause: the tensor's state before, whether its inputs were finite, and what
    followed; None if there is none."""
    hypotheses: tuple[Hypothesis, ...]
    """The two or three likeliest reasons of the root cause, each with its evidence."""
    telling_apart: str
    """The one command or look that tells the two likeliest apart; empty if there are not two."""

    rank_verdict: RankVerdict | None
    """Which rank the others wait for, and what each does with a step; None if there is one rank."""
    began_together: ChangePoint | None
    """What moved to another level at the step of the root cause, over all series; None if nothing did."""
    crashed: str = ""
    """The error that ended the run, of the first rank that crashed; empty: none did."""

    def __str__(self) -> str:
        return " ".join([diagnosis_text(self), *began_text(self), *others_text(self)])


@listings_cached()
def diagnose(run: RunReader, source: Source | None = None) -> Diagnosis:
    """Find the root cause of what went wrong in a run, over all ranks, from what was found during training.

    If that is incomplete (no rules ran, or ranks were not compared), rules run as in `check`, over rows of up to 32
    MiB; of more rows, or very many ranks, only rules that compare ranks run, as far as that takes seconds. Set `source`
    to force a replay, or to use only what was stored.
    """
    if source not in (None, "replay", "stored"):
        raise ConfigError(f"source: expected 'replay', 'stored' or None, got {source!r}")
    if source == "replay" or (source is None and rows_bytes(run) <= REPLAYED_BYTES and not has_many_ranks(run)):
        return diagnosis_of(run, check(run, failed=warn_of_failure, replay=source == "replay"))
    return diagnosis_of(run, stored_check(run) if source == "stored" else found_check(run))


@listings_cached()
def diagnosis_of(run: RunReader, found: Check) -> Diagnosis:
    """Build the diagnosis from a check."""
    ordered = tuple(sorted(found.incidents, key=lambda incident: incident.step))
    first = first_cause(ordered)
    reasons = () if first is None else hypotheses(run, first)
    quantities = run.quantities("all") if run.ranks else []
    return Diagnosis(
        name=run.name,
        path=run.path,
        source=found.source,
        missing=found.missing,
        replayed=found.replayed,
        num_bytes=rows_bytes(run),
        rules=tuple(found.rules),
        ranks=tuple(run.ranks),
        quantities=tuple(quantities),
        num_targets=sum(len(run.targets(quantity)) for quantity in quantities),
        num_steps=num_steps(run),
        last_step=run.last_step,
        incidents=ordered,
        first=first,
        onset=None if first is None else _onset(run, first),
        hypotheses=reasons,
        telling_apart=telling_apart(reasons),
        rank_verdict=rank_verdict(run, [alert for incident in ordered for alert in incident.alerts]),
        began_together=None if first is None else began_with(run, first.lead.began, first.lead.step),
        crashed=next((rank.error for rank in run.rank_states if rank.state == "crashed" and rank.error), ""),
    )


def first_cause(incidents: tuple[Incident, ...]) -> Incident | None:
    """Return the incident to look at first: the first of the most severe, or what led to it.

    An early note does not hide a later page. But if an incident became a page only by what followed, a warning right
    before it comes first: gradients that vanish after a jump of the input are due to that jump.
    """
    found = max(incidents, key=lambda one: (SEVERITIES.index(one.severity), -one.step), default=None)
    if found is not None and found.severity == "note":
        return _clearest(incidents)
    if found is None or found.raised_by is None:
        return found
    before = [one for one in incidents if one.severity != "note" and _comes_right_before(one, found)]
    return min(before, key=lambda one: one.step, default=found)


CLEARER = 1.5
"""How many times as strong a later note has to be to come before an earlier one."""


def _clearest(notes: Sequence[Incident]) -> Incident:
    """Return the earliest note, unless a later one is exact or far stronger: of early hints most are chance."""
    found, *others = sorted(notes, key=lambda one: one.step)
    for one in others:
        is_exact = one.lead.kind == "exact" and found.lead.kind != "exact"
        if is_exact or (one.lead.kind == found.lead.kind and one.lead.strength > CLEARER * found.lead.strength):
            found = one
    return found


def _comes_right_before(one: Incident, other: Incident) -> bool:
    is_same_rank = one.rank is None or other.rank is None or one.rank == other.rank
    return is_same_rank and one.step < other.step <= one.last_step + CONSEQUENCE_STEPS


def _onset(run: RunReader, incident: Incident) -> Onset | None:
    for alert in sorted(incident.alerts, key=lambda found: found.step):
        if alert.rule != "non_finite" or alert.target is None:
            continue
        for rank in run.ranks if alert.rank is None else [alert.rank]:
            if alert.quantity in run.quantities(rank):
                return onset_at(run, alert.step, alert.micro_step, rank, alert.quantity, alert.target)
    return None
