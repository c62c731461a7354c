"""A run as HTML for notebooks: a few lines and a picture, without scripts; names from the run are escaped."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from html import escape

from vario.core.errors import VarioError
from vario.core.text import duration, number, size
from vario.rules.api.wording import in_a_paragraph
from vario.runs.findings.check import found_check
from vario.runs.findings.diagnosis import first_cause
from vario.runs.reader import RunReader
from vario.runs.views.heat import read_heat
from vario.runs.views.heat_png import heat_png
from vario.runs.views.status.vitals import Vital, Vitals, read_vitals

SHOWN_FIRST = ("gradient", "activation", "weight")
ROWS, COLUMNS = 200, 640
WIDTH, LEAST_HEIGHT, MOST_HEIGHT = 640, 120, 320


def run_html(run: RunReader) -> str:
    """Return the run's state, its vital signs, the root cause of what went wrong, and its heat map."""
    try:
        parts = list(_parts(run))
    except VarioError as error:
        parts = [_line(escape(str(error)))]
    title = f"<strong>{escape(run.name)}</strong>"
    return f'<div style="max-width:{WIDTH}px;font-family:sans-serif;font-size:13px">{title}{"".join(parts)}</div>'


def _parts(run: RunReader) -> Iterator[str]:
    vitals = read_vitals(run)
    yield _line(escape(_state(run, vitals)))
    if vitals.vitals:
        yield _line(
            " &nbsp; ".join(f"{escape(_named(found))} <strong>{_shown(found)}</strong>" for found in vitals.vitals)
        )
    found = found_check(run)
    first = first_cause(tuple(found.incidents))
    if first is not None:
        said = f"<strong>{first.severity}</strong> {escape(in_a_paragraph(first))}"
        yield f'<div style="margin:6px 0;padding:4px 8px;border-left:3px solid">{said}</div>'
    if found.missing:
        yield _line(escape(f"From what was found during training; {found.missing}. `vario check` runs the rules now."))
    yield _picture(run)


def _state(run: RunReader, vitals: Vitals) -> str:
    pace = vitals.pace
    words = [run.state if run.error is None else f"{run.state}: {run.error}"]
    if pace.step is not None:
        words.append(f"step {pace.step}" + (f" of {pace.total_steps}" if pace.total_steps else ""))
    if pace.eta_seconds is not None:
        words.append(f"{duration(pace.eta_seconds)} left")
    if run.world_size > 1:
        words.append(f"{run.world_size} ranks")
    return ", ".join(words)


def _named(vital: Vital) -> str:
    return f"{vital.name} (found)" if vital.is_found else vital.name


def _shown(vital: Vital) -> str:
    if vital.unit == "s":
        return duration(vital.value)
    return size(vital.value) if vital.unit == "B" else f"{number(vital.value)}{escape(vital.unit)}"


def _picture(run: RunReader) -> str:
    recorded = run.quantities("all") if run.ranks else []
    quantity = next((name for name in (*SHOWN_FIRST, *recorded) if name in recorded and name != "scalar"), None)
    if quantity is None:
        return _line("No tensors recorded yet.")
    heat = read_heat(run, quantity, rows=ROWS, columns=COLUMNS)
    if not heat.values.size:
        return _line("No tensors recorded yet.")
    height = min(MOST_HEIGHT, max(LEAST_HEIGHT, 4 * len(heat.targets)))
    what = (
        f"{quantity.replace('_', ' ')} {heat.statistic} of {sum(heat.groups)} targets, in model order from the top, "
        f"steps {heat.first[0]} to {heat.last[-1]}; brighter is larger, magenta is NaN or Inf"
    )
    source = b64encode(heat_png(heat)).decode()
    return (
        f'<img alt="{escape(what)}" src="data:image/png;base64,{source}" '
        f'style="width:{WIDTH}px;height:{height}px;image-rendering:pixelated">{_line(escape(what))}'
    )


def _line(markup: str) -> str:
    return f"<div>{markup}</div>"
