"""A diagnosis as a person reads it in a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from vario.core.text import size
from vario.reports.check_text import STYLES
from vario.rules.api.wording import place_of
from vario.runs.findings.diagnosis import Diagnosis
from vario.runs.findings.diagnosis_text import diagnosis_text

OTHERS_SHOWN = 8


def render_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    """The first cause, the other incidents in a line each, and what this was read from."""
    first = diagnosis.first
    text = Text(diagnosis_text(diagnosis), style="" if first else "green")
    blocks: list[RenderableType] = [text]
    if first is not None:
        heading = Text(
            f"{diagnosis.name}: {place_of(first.lead)}, step {first.lead.step}", style=STYLES[first.severity]
        )
        blocks.insert(0, heading)
    others = [incident for incident in diagnosis.incidents if incident is not first]
    if others:
        blocks += [Text(), Text(f"{len(others)} more incident{'s' if len(others) > 1 else ''}", style="bold")]
        for incident in others[:OTHERS_SHOWN]:
            rank = "" if incident.rank is None else f", rank {incident.rank}"
            lead = incident.lead
            blocks.append(Text(f"  step {lead.step}{rank}: {lead.text} [{lead.rule}, {incident.severity}]"))
        if len(others) > OTHERS_SHOWN:
            blocks.append(Text(f"  and {len(others) - OTHERS_SHOWN} more; `vario check` lists them"))
    rows = size(diagnosis.num_bytes)
    how = f"rules replayed over {rows} of rows" if diagnosis.source == "replay" else f"stored alerts ({rows} of rows)"
    blocks += [Text(), Text(f"From: {how}.", style="dim")]
    return Group(*blocks)
