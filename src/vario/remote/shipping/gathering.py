"""Brings the rank folders of one job together that lie on many hosts: `vario gather`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vario.core import run_format
from vario.core.errors import RunNotFound, RunTaken, Unreachable
from vario.core.masking import masked
from vario.remote.places import Place
from vario.remote.places.opening import open_place
from vario.remote.shipping.copying import Copier
from vario.remote.shipping.identity import check_same_run, read_object
from vario.remote.shipping.pace import Pace

RANK = re.compile(r"rank(0|[1-9][0-9]{0,6})")
PASSES = 3
"""A source that is being written may need more than one: a stream has become a part meanwhile."""


@dataclass
class Gathered:
    """What came together."""

    ranks: list[int]
    num_files: int = 0
    num_bytes: int = 0
    unreachable: int = 0
    """Sources that could not be reached."""


def gather(sources: Sequence[str], destination: str, rate: int | None, tell: Callable[[str], None]) -> Gathered:
    """Copy what is new in each source to one run folder; goes on without a source that cannot be reached.

    Raises RunTaken, before anything is copied, if the sources are not of one job.
    """
    target = open_place(destination)
    _check_destination(target)
    found = Gathered([])
    places: list[Place] = []
    for source in sources:
        try:
            place = open_place(source)
            if not _ranks(place):
                raise RunNotFound(f"{masked(source)}: not a run: has no folder of a rank")
            places.append(place)
        except Unreachable as error:
            found.unreachable += 1
            tell(f"{error}. Left out.")
    check_same_run(target, *places)
    _check_disjoint(places)
    pace = Pace(rate)
    for place in places:
        try:
            _copy(place, target, pace, found)
        except Unreachable as error:
            found.unreachable += 1
            tell(f"{error}. The rest of it is left out.")
    found.ranks = sorted(int(name.removeprefix("rank")) for name in _ranks(target))
    return found


def _copy(place: Place, target: Place, pace: Pace, found: Gathered) -> None:
    copier = Copier(place, target, pace)
    for _ in range(PASSES):
        outcome = copier.once(is_last=True)
        found.num_files += outcome.num_files
        found.num_bytes += outcome.num_bytes
        if not outcome.waiting:
            return


def _ranks(place: Place) -> list[str]:
    return [name for name, entry in place.listed("").items() if entry.is_folder and RANK.fullmatch(name)]


def _check_destination(target: Place) -> None:
    names = [name for name in target.listed("") if not name.startswith(".")]
    if names and run_format.RUN not in names and not any(map(RANK.fullmatch, names)):
        raise RunTaken(f"{masked(target.url)}: contains '{sorted(names)[0]}' and no run. Name the folder of the run.")


def _check_disjoint(places: Sequence[Place]) -> None:
    """Raise if two sources have the same rank of different hosts: one would overwrite the other."""
    seen: dict[str, tuple[Place, object]] = {}
    for place in places:
        for name in _ranks(place):
            host = (read_object(place, f"{name}/{run_format.RANK}") or {}).get("host")
            other = seen.setdefault(name, (place, host))
            if other[1] != host:
                raise RunTaken(f"{masked(place.url)} and {masked(other[0].url)}: both have a {name}, of other hosts")
