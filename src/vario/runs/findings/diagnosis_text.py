"""A diagnosis as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from vario.core.text import number, size
from vario.rules.api.alerts import Alert
from vario.rules.api.wording import in_a_paragraph
from vario.runs.findings.change_points import point_text
from vario.runs.findings.onset import BadRow, Onset

if TYPE_CHECKING:
    from vario.runs.findings.check import Check
    from vario.runs.findings.diagnosis import Diagnosis


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Describe the root cause in one paragraph, or what was checked if nothing was found."""
    if diagnosis.first is None:
        return _nothing(diagnosis)
    onset, lead = diagnosis.onset, diagnosis.first.lead
    if onset is None:
        return in_a_paragraph(diagnosis.first)
    if (onset.quantity, onset.target, onset.step) == (lead.quantity, lead.target, lead.step):
        return in_a_paragraph(diagnosis.first, list(_remarks(onset)), list(_chain(onset, lead)))
    return in_a_paragraph(diagnosis.first, [_led_to(onset)])


def source_text(found: Check | Diagnosis) -> str:
    """Say whether it was found during training or by a replay, why, and what was not checked."""
    verb = "Found" if found.incidents else "Checked"
    missing = found.missing
    because = f", because {missing}" if missing else ""
    if found.source == "replay":
        thinned = getattr(found, "thinned", "")
        return f"{verb} by replaying the rules over the stored steps{because}.{' ' if thinned else ''}{thinned}"
    if found.replayed:
        left = f" {missing[:1].upper()}{missing[1:]}: `vario check` runs the rest." if missing else ""
        return f"{verb} during training; {len(found.replayed)} rules compared the ranks afterwards.{left}"
    if missing and not found.rules:
        return f"{missing[:1].upper()}{missing[1:]}: `vario check` replays the rules."
    rest = f" {missing[:1].upper()}{missing[1:]}: `vario check` does that." if missing else ""
    return f"{verb} during training.{rest}"


def others_text(diagnosis: Diagnosis) -> Iterator[str]:
    """Say how many more incidents there were, if any."""
    num_others = len(diagnosis.incidents) - 1
    if num_others > 0:
        yield f"{num_others} more incident{'s' if num_others > 1 else ''} in this run."


def began_text(diagnosis: Diagnosis) -> Iterator[str]:
    """Say what moved to another level at the step of the root cause, if anything did."""
    if (point := diagnosis.began_together) is not None:
        yield f"Levels shifted at step {point.step}: {point_text(point)}."


def _nothing(diagnosis: Diagnosis) -> str:
    if not diagnosis.num_steps:
        return "Nothing recorded yet."
    ranks = f", {len(diagnosis.ranks)} ranks" if len(diagnosis.ranks) > 1 else ""
    rows = (
        f"{diagnosis.num_steps} steps up to {diagnosis.last_step}, {diagnosis.num_targets} targets of "
        f"{', '.join(diagnosis.quantities)}{ranks}"
    )
    if diagnosis.source == "replay":
        return f"Nothing found: {len(diagnosis.rules)} rules were replayed over {rows}."
    if not diagnosis.rules:
        return (
            "No alerts are stored: no rules ran during training, and the rows "
            f"({size(diagnosis.num_bytes)}) were not replayed. Run `vario diagnose --replay`."
        )
    crashed = f" The run crashed, though: {diagnosis.crashed}" if diagnosis.crashed else ""
    return f"Nothing found during training: {len(diagnosis.rules)} rules checked {rows}.{crashed}"


def _remarks(onset: Onset) -> Iterator[str]:
    if onset.inputs_were_finite:
        yield "The inputs of that module were finite: it happened inside"
    elif onset.inputs_were_finite is False:
        yield "The inputs of that module were not finite either"
    if onset.usual is not None:
        known = [
            f"{name} {number(value, 3)}"
            for name, value in (("norm", onset.usual.norm), ("largest magnitude", onset.usual.absmax))
            if value is not None
        ]
        yield f"At step {onset.usual.step} it was healthy" + (f" ({', '.join(known)})" if known else "")


def _led_to(onset: Onset) -> str:
    inside = ", whose inputs were finite" if onset.inputs_were_finite else ""
    kind = "NaN" if onset.nans else "Inf"
    noun = "" if onset.quantity == "scalar" else f"{onset.quantity.replace('_', ' ')} of "
    return f"It led to the first {kind} at step {onset.step}: {noun}'{onset.target}'{inside}"


def _chain(onset: Onset, lead: Alert) -> Iterator[str]:
    quantity, step = lead.quantity, lead.step
    for row in onset.chain:
        yield f"{_noun(row, quantity)}'{row.target}'" + (f" (step {row.step})" if row.step != step else "")
        quantity, step = row.quantity, row.step


def _noun(row: BadRow, quantity: str) -> str:
    return "" if row.quantity == quantity else f"{row.quantity.replace('_', ' ')} of "
