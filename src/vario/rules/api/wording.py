"""Incidents as text: one line, or a paragraph with the first finding, its usual range, consequences, cause, advice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from vario.core.text import number
from vario.rules.api.alerts import Alert, Incident


def in_one_line(incident: Incident, run: Path | None = None) -> str:
    """Format an incident for the training log."""
    where = f"step {incident.lead.step}" + ("" if incident.rank is None else f", rank {incident.rank}")
    if (later := incident.raised_by) is not None:
        where = f"step {later.step}: {later.text} [{later.label_or_rule}]. It began at {where}"
    more = len(incident.alerts) - 1
    rest = f" (and {more} more alert{'s' if more > 1 else ''})" if more else ""
    look = "" if run is None else f" More: vario diagnose {run}"
    lead = incident.lead
    return f"{where}: {lead.text} [{lead.label_or_rule}]{rest}. Likely cause: {incident.cause}.{look}"


FOLLOWERS_NAMED = 4


def in_a_paragraph(incident: Incident, remarks: Sequence[str] = (), chain: Sequence[str] = ()) -> str:
    """Format an incident with step, rank, tensor, rule, value, usual range, consequences, likely cause and next action.

    `remarks` are sentences about the first tensor; `chain` names the consequences if more is known than the alerts say.
    """
    lead = incident.lead
    is_named = incident.rank is None or lead.text.startswith(f"rank {incident.rank} ")
    where = f"At step {lead.step}" + ("" if is_named else f" on rank {incident.rank}")
    # The chain below says more about the consequences.
    seen = lead.text.partition("; then ")[0] if chain else lead.text
    sentences = [f"{where} {seen}{_range(lead)} ({_finder(lead)})"]
    if lead.began < lead.step:
        sentences.append(f"It began at step {lead.began}")
    if lead.step > incident.step:
        sentences.append(f"Its first alert was raised at step {incident.step}: {incident.alerts[0].text}")
    if (later := incident.raised_by) is not None:
        sentences.append(f"It became urgent at step {later.step}: {later.text} ({_finder(later)})")
    sentences += remarks
    followers = list(chain) or list(_followers(incident))
    if followers:
        rest = len(followers) - FOLLOWERS_NAMED
        more = f", and {rest} more up to step {incident.last_step}" if rest > 0 else ""
        sentences.append(f"Followed by {', '.join(followers[:FOLLOWERS_NAMED])}{more}")
    sentences.append(f"Likely cause: {incident.cause}")
    sentences.append(f"Next: {incident.advice}")
    return " ".join(closed(sentence) for sentence in sentences if sentence)


def place_of(alert: Alert) -> str:
    """Name the tensor, number or group an alert is about."""
    if alert.target is None:
        return f"{_noun(alert.quantity)} of most tensors" if alert.others else f"{_noun(alert.quantity)} of all tensors"
    return alert.target if alert.quantity == "scalar" else f"{_noun(alert.quantity)} of '{alert.target}'"


def _finder(alert: Alert) -> str:
    return f"{alert.label or f'rule {alert.rule}'}, {alert.kind}"


def _noun(quantity: str) -> str:
    return quantity.replace("_", " ")


def _range(alert: Alert) -> str:
    """The value and its usual range, unless the text already gives them."""
    parts = []
    if alert.value == alert.value and alert.target is not None and number(alert.value) not in alert.text:
        parts.append(f"value {number(alert.value)}")
    ends = [end for end in (alert.low, alert.high) if end is not None]
    if any(number(end) not in alert.text for end in ends):
        low, high = alert.low, alert.high
        if low is None or high is None:
            parts.append(f"usually {'at most ' + number(high) if low is None else 'at least ' + number(low)}")
        else:
            parts.append(f"usually {number(low)}" + ("" if low == high else f" to {number(high)}"))
    return f" ({', '.join(parts)})" if parts else ""


def _followers(incident: Incident) -> Iterator[str]:
    """Alerts after the lead, each place once."""
    seen = {(incident.lead.quantity, incident.lead.target)}
    step = incident.lead.step
    for alert in sorted(incident.alerts, key=lambda found: (found.step, found.stage, found.order)):
        key = (alert.quantity, alert.target)
        if key in seen or alert.step < incident.lead.step:
            continue
        seen.add(key)
        remarks = [alert.label_or_rule] + ([f"step {alert.step}"] if alert.step != step else [])
        step = alert.step
        yield f"{place_of(alert)} ({', '.join(remarks)})"


def closed(sentence: str) -> str:
    """Return a sentence with a full stop, unless it ends in a mark of its own."""
    return sentence if sentence.endswith((".", "?", "!")) else f"{sentence}."
