"""Writes a run's home screen as one HTML file that needs no server: page, script and numbers."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Iterator
from html import escape
from pathlib import Path

from vario.core.errors import ConfigError, RunError
from vario.runs.run import Run
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import read_heat
from vario.web import bodies
from vario.web.addresses.charts import described_curve, heat_bytes, heat_head, split_series
from vario.web.addresses.findings import alerts
from vario.web.addresses.overview import run as run_answer
from vario.web.api.answers import encode
from vario.web.pages.built_files import BUILT, why_missing
from vario.web.served import Served

ROWS, COLUMNS, POINTS = 300, 500, 1000
MOST_BYTES = 6 << 20
"""The size limit for all heat maps; the most important ones come first."""
SHOWN_FIRST = ("gradient", "activation", "weight", "update", "activation_gradient", "moment")
NOT_SHOWN = ("scalar", "checksum", "communication")
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def report_html(path: Path) -> str:
    """Return the run at a path as one HTML document."""
    script, style = _built("report.js"), _built("report.css")
    served = Served(path)
    with served.reading():
        run = served.open(".")
        answer = run_answer(served, {"run": "."})
        content = {
            "made": time.time(),
            "run": answer | {"path": run.name},
            "alerts": alerts(served, {"run": ".", "replay": False}),
            "heats": [b64encode(found).decode() for found in _heats(run)],
            "curves": [{"run": ".", **found} for found in _curves(run, answer)],
        }
    # No name in a run can end the script it is in.
    numbers = encode(content).decode().replace("<", "\\u003c")
    script = script.replace("</script", "<\\/script")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.name)} - vario</title><style>{style.replace('</style', '')}</style></head>"
        f'<body><div id="vario"></div><script>window.VARIO = {numbers}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def _built(name: str) -> str:
    path = BUILT / name
    if not path.is_file():
        raise RunError(f"--html: no page to write. {why_missing()}")
    return path.read_text(encoding="utf8")


def _heats(run: Run) -> Iterator[bytes]:
    recorded = [name for name in (run.quantities("all") if run.ranks else []) if name not in NOT_SHOWN]
    first = [name for name in SHOWN_FIRST if name in recorded]
    num_bytes = 0
    for quantity in dict.fromkeys([*first, *recorded]):
        found = read_heat(run, quantity, rows=ROWS, columns=COLUMNS)
        packed = heat_bytes(heat_head(found), found)
        num_bytes += len(packed)
        if num_bytes > MOST_BYTES:
            return
        yield packed


def _curves(run: Run, answer: bodies.RunHome) -> Iterator[bodies.RankCurve]:
    """The curves of the vital signs and of incidents."""
    wanted = [f"scalar|{vital.target}|value" for vital in answer["vital"]]
    wanted += [incident["series"] for incident in answer["incidents"] if incident["series"] is not None]
    for text in dict.fromkeys(wanted):
        quantity, target, statistic = split_series(text)
        try:
            yield described_curve(read_curve(run, target, quantity, statistic, points=POINTS))
        except ConfigError:
            continue  # an alert may be about something without rows
