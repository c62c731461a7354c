"""Whether two folders are of the same job: ranks of two jobs would each be half of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vario.core import run_format
from vario.core.errors import RunTaken
from vario.core.masking import masked
from vario.remote.places import Place

JOB = "job.json"
_MOST_BYTES = 64 << 20


def check_same_run(*places: Place) -> None:
    """Raise RunTaken if these places have different runs; those that have none fit to any."""
    told = [(place, _told(place)) for place in places]
    for number, (place, found) in enumerate(told):
        for other, before in told[:number]:
            if (difference := _difference(before, found)) is not None:
                raise RunTaken(
                    f"{masked(place.url)}: contains another run than {masked(other.url)}: {difference}. "
                    "Choose another place."
                )


def read_object(place: Place, name: str) -> dict[str, Any] | None:
    """Return what a JSON file says; None if it is not there or says nothing that can be used."""
    try:
        found = json.loads(place.read(name, 0, _MOST_BYTES))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _told(place: Place) -> dict[str, Any]:
    """What tells one job from another."""
    names = place.listed("")
    run = (read_object(place, run_format.RUN) if run_format.RUN in names else None) or {}
    job = (read_object(place, JOB) if JOB in names else None) or {}
    size = run.get("world_size")
    ranks = sorted(name for name, entry in names.items() if entry.is_folder and name.startswith("rank"))
    if size is None and ranks:
        size = (read_object(place, f"{ranks[0]}/{run_format.RANK}") or {}).get("world_size")
    return {"id": run.get("id"), "job": job.get("job"), "number of ranks": size}


def _difference(here: Mapping[str, Any], there: Mapping[str, Any]) -> str | None:
    for what, ours in here.items():
        theirs = there[what]
        if ours is not None and theirs is not None and ours != theirs:
            return f"its {what} is {theirs}, not {ours}"
    return None
