"""The endpoint for Prometheus: the vital signs of the runs that train, and of the newest others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vario.core.errors import VarioError
from vario.core.exposition import MEDIA, Sample, family
from vario.core.process.ending import OVER
from vario.core.quantities import SCALAR
from vario.rules.api.alerts import SEVERITIES
from vario.runs.files.status import RankState
from vario.runs.run import Run
from vario.runs.table.summary import RunSummary
from vario.runs.views.speed.throughput import read_throughput
from vario.runs.views.status.vitals import chosen_names
from vario.web.addresses.overview import rows_of
from vario.web.api.answers import Answer, Endpoint
from vario.web.reading import guarded
from vario.web.served import Served, Stamp
from vario.web.server.security import VITAL_SIGNS_PATH

MOST_RUNS = 50
"""The most runs with numbers of their own: those that train first, then the newest. Each has at most 19 series."""
LIST_SECONDS = 5.0
"""The time limit for the list of runs: scrapers wait 10 s."""
LIVE = ("running", "stalled")
STATES = (*LIVE, *OVER)
NUMBERS = (
    ("last_step", "Last step recorded."),
    ("progress_ratio", "Steps done, as a share of all, if the script logs total_steps."),
    ("loss", "Latest loss."),
    ("steps_per_second", "Steps per second since the run started."),
    ("samples_per_second", "Samples per second of the first rank, in its last steps."),
    ("gradient_norm", "Latest norm of all gradients."),
    ("overhead_ratio", "Share of the step time that watching costs."),
    ("seconds_since_last_step", "Seconds since the last step ended, of a run that has not ended."),
)
"""Names and meanings of the numbers that each run has one of."""


@dataclass(frozen=True)
class _Signs:
    """The vital signs of one run."""

    run: str
    state: str
    numbers: Mapping[str, float | None]
    incidents: Counter[str]
    ranks: Mapping[str, int]


def vital_signs(served: Served, values: Mapping[str, Any]) -> Answer:
    """Return the vital signs as text."""
    summaries, num_unread = rows_of(served).summaries(LIST_SECONDS)
    # Newest first already; those that train come before all others.
    chosen = sorted(summaries, key=lambda summary: summary.brief.state not in LIVE)[:MOST_RUNS]
    states = Counter(summary.brief.state for summary in summaries)
    known = [{"state": state} for state in STATES]
    lines = family("runs", "gauge", "Runs below the served folder.", [(each, states[each["state"]]) for each in known])
    lines += family("unread_runs", "gauge", "Runs that were not read in time.", [({}, num_unread)])
    return Answer("\n".join([*lines, *_lines([_read(served, one) for one in chosen])]).encode("utf8") + b"\n", MEDIA)


def _lines(signs: Sequence[_Signs]) -> Iterator[str]:
    yield from family("run_state", "gauge", "1 for the state that a run is in.", _states(signs))
    for name, meaning in NUMBERS:
        told = [({"run": one.run}, value) for one in signs if (value := one.numbers.get(name)) is not None]
        yield from family(name, "gauge", meaning, told)
    found: list[Sample] = [
        ({"run": one.run, "severity": severity}, one.incidents[severity]) for one in signs for severity in SEVERITIES
    ]
    yield from family("run_incidents", "gauge", "Incidents found in a run so far.", found)
    ranks: list[Sample] = [
        ({"run": one.run, "state": state}, number) for one in signs for state, number in one.ranks.items()
    ]
    yield from family("ranks", "gauge", "Ranks of a run that has not ended, by what they do.", ranks)


def _states(signs: Sequence[_Signs]) -> list[Sample]:
    return [({"run": one.run, "state": state}, float(one.state == state)) for one in signs for state in STATES]


def _read(served: Served, summary: RunSummary) -> _Signs:
    brief = summary.brief
    names = {label: target for label, target, _ in chosen_names(list(brief.numbers))}
    latest = {label: brief.numbers[target].last for label, target in names.items()}
    numbers = {
        "last_step": brief.pace.step,
        "progress_ratio": brief.pace.progress,
        "loss": brief.loss,
        "steps_per_second": brief.pace.steps_per_second,
        "samples_per_second": latest.get("samples"),
        "gradient_norm": latest.get("gradient norm"),
        "overhead_ratio": latest.get("overhead of vario"),
    }
    ranks: dict[str, int] = {}
    try:
        rate, ended = _rate_and_end(served, summary.run)
        numbers["samples_per_second"] = rate if latest.get("samples") is None else latest["samples"]
        if brief.state in LIVE:
            ranks = _ranks(guarded(served.open, summary.run).rank_states)
            numbers["seconds_since_last_step"] = None if ended is None else max(0.0, time.time() - ended)
    except VarioError:
        pass  # damaged since it was listed: what the list knows of it remains
    return _Signs(summary.run, brief.state, numbers, summary.incidents, ranks)


def _ranks(states: Sequence[RankState]) -> dict[str, int]:
    found = Counter(state.state for state in states)
    others = sum(found.values()) - found["running"] - found["stalled"]
    return {"writing": found["running"], "stalled": found["stalled"], "ended": others}


def _rate_and_end(served: Served, name: str) -> tuple[float | None, float | None]:
    """Samples per second, and when the last step ended; read again only when a file of the run has changed."""
    known: dict[str, tuple[Stamp, tuple[float | None, float | None]]] = served.shared("vital signs", dict)
    stamp = guarded(served.stamp, name)
    if name not in known or known[name][0] != stamp:
        while len(known) >= 4 * MOST_RUNS:
            known.pop(next(iter(known)), None)
        known[name] = stamp, guarded(_read_rate_and_end, served.open(name, stamp))
    return known[name][1]


def _read_rate_and_end(run: Run) -> tuple[float | None, float | None]:
    if not run.ranks or SCALAR not in run.quantities(run.ranks[0]):
        return None, None
    speed = read_throughput(run)
    steps = run.steps(SCALAR, run.ranks[0])[-1:]
    times = run.reader(run.ranks[0], SCALAR).times(run.sessions, steps)
    ended = float(times[-1]) if len(times) and times[-1] == times[-1] else None
    return None if speed is None else speed.samples_per_second, ended


ENDPOINTS = (
    Endpoint(
        VITAL_SIGNS_PATH,
        f"Vital signs for Prometheus, of at most {MOST_RUNS} runs: those that train, then the newest.",
        vital_signs,
        media=(MEDIA,),
        is_cached=False,
    ),
)
