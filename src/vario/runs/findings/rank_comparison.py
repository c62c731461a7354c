"""Compares the ranks of a run that has ended: the first reader does it, and stores the result beside the run.

Ranks do not communicate, so rules that compare them cannot run in any of them. What they find is kept in
`.vario/ranks` of the folder that the run is in, in a file for each run. It is a cache: it counts only while the run is
as it was, it can be deleted, and where it cannot be written each process compares once.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.errors import RunCorrupt, RunError
from vario.core.run_files import read_bytes
from vario.core.run_format import RANK
from vario.core.text import size
from vario.rules import Chosen
from vario.rules.api.alerts import Alert
from vario.runs.files.listing_cache import listings_cached
from vario.runs.findings.alert_lines import checked_alert
from vario.runs.findings.replay import Failed, replay, rules_of, warn_of_failure
from vario.runs.notes.beside import FOLDER, beside, inner, replace_file
from vario.runs.reader import RunReader
from vario.runs.views.status.quantity_size import rows_bytes

COMPARED = "ranks"
"""The folder of the results, in `.vario`."""
FORMAT = 1
MOST_BYTES = 16 << 20
MOST_ALERTS = 10_000

MOST_RANK_STEPS = 32_768
MOST_ROWS_BYTES = 32 << 20
"""Ranks times steps, and bytes of rows, that a reader compares without being asked: some seconds."""
RESULTS_KEPT = 64


@dataclass(frozen=True)
class Comparison:
    """What rules that compare ranks found in a run."""

    alerts: tuple[Alert, ...]
    rules: tuple[str, ...]
    """The rules that ran."""
    left_out: tuple[str, ...] = ()
    """Those that did not, because it would take long."""
    reason: str = ""
    """Why it would: how much there is to read."""


_kept: dict[tuple[str, str], Comparison] = {}
_working = threading.Lock()


def comparing_rules(run: RunReader) -> list[Chosen]:
    """Return the rules of a run that compare its ranks; none if it has one rank."""
    return [entry for entry in rules_of(run) if entry.rule.over == "ranks"] if len(run.ranks) > 1 else []


@listings_cached()
def compare_ranks(
    run: RunReader, however_long: bool = False, failed: Failed | None = warn_of_failure
) -> Comparison | None:
    """Return what a comparison of the ranks finds, compared now if nobody has; None if there is nothing to compare.

    What would take more than seconds is left out, unless it is to be done `however_long`. Only then is a run compared
    that goes on, of which nothing is stored, or one that was watched without rules.
    """
    chosen = comparing_rules(run)
    if not chosen or (not however_long and run.config.get("rules") == {}):
        return None
    if not _has_ended(run):
        return _compared(run, chosen, failed) if however_long else None
    with _working:  # the second of two readers waits for the first, and reads what it stored
        known = known_comparison(run)
        if known is not None and not (known.left_out and however_long):
            return known
        found = _compared(run, chosen, failed) if however_long else _compared_in_time(run, chosen, failed)
        _keep(run, _stamp(run, chosen), found)
    return found


def known_comparison(run: RunReader) -> Comparison | None:
    """Return what a comparison of an ended run found; None if nobody has compared its ranks as they are now."""
    chosen = comparing_rules(run)
    if not chosen or not _has_ended(run):
        return None
    stamp = _stamp(run, chosen)
    return _kept.get((str(run.path), stamp)) or _read(run.path, stamp)


def place_of_comparison(run: Path) -> tuple[str, int, int] | None:
    """Return name, size and modification time of the file with the result; None if there is none."""
    path = _path(run)
    try:
        stat = os.lstat(path)
    except OSError:
        return None
    return path.name, stat.st_size, stat.st_mtime_ns


def has_many_ranks(run: RunReader) -> bool:
    """Whether a run has too many steps of too many ranks to replay them in seconds."""
    return len(run.ranks) > 1 and _num_rank_steps(run) > MOST_RANK_STEPS


def _num_rank_steps(run: RunReader) -> int:
    return len(run.ranks) * len(run.steps("scalar", run.ranks[0]))


def _has_ended(run: RunReader) -> bool:
    return run.state not in ("running", "stalled")


def _compared(run: RunReader, chosen: Sequence[Chosen], failed: Failed | None) -> Comparison:
    names = tuple(entry.rule.name for entry in chosen)
    if not chosen:
        return Comparison((), ())
    found = replay(run, chosen, failed=failed, quantities=_needed(chosen))
    return Comparison(tuple(found.alerts[:MOST_ALERTS]), names)


def _compared_in_time(run: RunReader, chosen: Sequence[Chosen], failed: Failed | None) -> Comparison:
    """Run the rules whose rows are few enough, those with the fewest first."""
    if has_many_ranks(run):
        names = tuple(entry.rule.name for entry in chosen)
        num_ranks = len(run.ranks)
        return Comparison((), (), names, f"{_num_rank_steps(run) // num_ranks:,} steps of {num_ranks:,} ranks")
    sizes = {quantity: rows_bytes(run, quantity) for quantity in run.quantities("all")}
    few: list[Chosen] = []
    left: dict[str, int] = {}
    for entry in sorted(chosen, key=lambda one: _bytes_of([one], sizes)):
        num_bytes = _bytes_of([*few, entry], sizes)
        if num_bytes > MOST_ROWS_BYTES:
            left[entry.rule.name] = num_bytes
        else:
            few.append(entry)
    found = _compared(run, few, failed)
    reason = f"{size(max(left.values()))} of rows" if left else ""
    return Comparison(found.alerts, found.rules, tuple(left), reason)


def _needed(chosen: Sequence[Chosen]) -> frozenset[str] | None:
    """The quantities that rules read; None: some rule does not say."""
    if not all(entry.rule.needs for entry in chosen):
        return None
    return frozenset().union(*(entry.rule.needs for entry in chosen))


def _bytes_of(chosen: Sequence[Chosen], sizes: Mapping[str, int]) -> int:
    needed = _needed(chosen)
    return sum(size for name, size in sizes.items() if needed is None or name in needed or name == "scalar")


def _stamp(run: RunReader, chosen: Sequence[Chosen]) -> str:
    """What changes when a run is resumed or replaced, or when other rules are asked for."""
    ranks = []
    for rank in run.ranks:
        with suppress(OSError):
            stat = os.lstat(run.path / f"rank{rank}" / RANK)
            ranks.append((rank, stat.st_size, stat.st_mtime_ns))
    rules = sorted((entry.rule.name, sorted(entry.options.items())) for entry in chosen)
    told = json.dumps([run.started, len(run.sessions), ranks, rules], default=str)
    return hashlib.sha256(told.encode()).hexdigest()


def _path(run: Path) -> Path:
    # A run's name may be as long as a file's name can be.
    name = hashlib.sha256(run.name.encode(errors="surrogateescape")).hexdigest()[:32]
    return run.parent / FOLDER / COMPARED / f"{name}.json"


def _read(run: Path, stamp: str) -> Comparison | None:
    """A file that cannot be used counts as none."""
    try:
        content = json.loads(read_bytes(_path(run), 3, MOST_BYTES))
        if content["format"] != FORMAT or content["stamp"] != stamp:
            return None
        alerts = tuple(checked_alert(plain) for plain in content["alerts"])
        return Comparison(alerts, _words(content["rules"]), _words(content["left_out"]), _words([content["reason"]])[0])
    except (OSError, RunCorrupt, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _words(found: Any) -> tuple[str, ...]:
    if type(found) is not list or not all(type(word) is str for word in found):
        raise ValueError("expected a list of words")
    return tuple(found)


def _keep(run: RunReader, stamp: str, found: Comparison) -> None:
    """Store a result in this process, and in the file."""
    _kept[str(run.path), stamp] = found
    while len(_kept) > RESULTS_KEPT:
        del _kept[next(iter(_kept))]
    plain = {
        "format": FORMAT,
        "run": run.path.name,
        "stamp": stamp,
        "rules": found.rules,
        "left_out": found.left_out,
        "reason": found.reason,
        "alerts": [alert.to_stored() for alert in found.alerts],
    }
    content = json.dumps(plain, allow_nan=False).encode()
    # In somebody else's folder, each process compares for itself.
    with suppress(RunError, OSError), beside(run.path.parent) as descriptor, inner(descriptor, COMPARED) as folder:
        replace_file(folder, _path(run.path).name, content)
