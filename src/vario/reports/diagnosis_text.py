"""A diagnosis as terminal output."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from vario.core.text import size
from vario.reports.check_text import STYLES
from vario.rules.api.wording import closed, place_of
from vario.runs.findings.diagnosis import Diagnosis
from vario.runs.findings.diagnosis_text import began_text, diagnosis_text, source_text

OTHERS_SHOWN = 8


def render_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    """Render the root cause, one line for each other incident, and the source of the findings."""
    first = diagnosis.first
    text = Text(diagnosis_text(diagnosis), style="" if first else "green")
    blocks: list[RenderableType] = [text]
    if first is not None:
        heading = Text(
            f"{diagnosis.name}: {place_of(first.lead)}, step {first.lead.step}", style=STYLES[first.severity]
        )
        blocks.insert(0, heading)
        blocks += [Text(said) for said in began_text(diagnosis)]
        blocks += _reasons(diagnosis)
    others = [incident for incident in diagnosis.incidents if incident is not first]
    if others:
        blocks += [Text(), Text(f"{len(others)} more incident{'s' if len(others) > 1 else ''}", style="bold")]
        for incident in others[:OTHERS_SHOWN]:
            rank = "" if incident.rank is None else f", rank {incident.rank}"
            lead = incident.lead
            blocks.append(Text(f"  step {lead.step}{rank}: {lead.text} [{lead.label_or_rule}, {incident.severity}]"))
        if len(others) > OTHERS_SHOWN:
            blocks.append(Text(f"  and {len(others) - OTHERS_SHOWN} more; `vario check` lists them"))
    if diagnosis.rank_verdict is not None:
        blocks += [Text(), Text("Ranks", style="bold"), Text(f"  {diagnosis.rank_verdict.text}")]
    how = source_text(diagnosis)
    blocks += [Text(), Text(f"{how} The run has {size(diagnosis.num_bytes)} of rows.", style="dim")]
    return Group(*blocks)


def _reasons(diagnosis: Diagnosis) -> list[RenderableType]:
    """The likeliest reasons with their evidence, and what tells them apart."""
    blocks: list[RenderableType] = [Text(), Text("Hypotheses", style="bold")] if diagnosis.hypotheses else []
    for found in diagnosis.hypotheses:
        blocks.append(Text(f"  {round(100 * found.share)} %  {found.title}"))
        blocks += [Text(f"        for: {text}") for text in found.evidence]
        blocks += [Text(f"        against: {text}") for text in found.against]
    if diagnosis.telling_apart:
        blocks.append(Text(f"  {closed(diagnosis.telling_apart)}"))
    elif diagnosis.hypotheses:
        blocks.append(Text(f"  {closed(f'To confirm it: {diagnosis.hypotheses[0].look}')}"))
    return blocks
