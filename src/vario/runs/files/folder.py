"""A run folder and what its JSON files say: what the run is, and how it and its ranks fare."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError, RunNotFound
from vario.runs.files import status
from vario.runs.files.rank_failures import what_failed, with_victims
from vario.runs.files.status import PartOff, RankState
from vario.statistics import STATISTICS, columns_needed

USUAL = ("norm", "rms", "absmax")
"""Statistics that tell the size of a tensor, the best first."""


class RunFolder:
    """What stands beside a run's rows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = status.read_run_json(path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state})"

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.resolve().name

    @property
    def id(self) -> str:
        """A random name that outlives moving the folder."""
        return str(self._header.get("id"))

    @property
    def started(self) -> float:
        """Unix seconds."""
        return float(self._header.get("started") or 0.0)

    @property
    def ended(self) -> float | None:
        """Unix seconds; None while it runs, or when nobody was left to write it down."""
        ended = status.read_run_json(self.path).get("ended")
        return None if ended is None else float(ended)

    @property
    def error(self) -> str | None:
        """What the run crashed with, if it could still say so."""
        error = what_failed(self.noted_rank_states) or status.read_run_json(self.path).get("error")
        return None if error is None else str(error)

    @property
    def group(self) -> str | None:
        """What it has in common with other runs that one process made, one after the other; None: nobody knew."""
        group = self._header.get("group")
        return None if group is None else str(group)

    @property
    def config(self) -> dict[str, Any]:
        """The options it was watched with."""
        return dict(self._header.get("config") or {})

    @property
    def versions(self) -> dict[str, str]:
        """Versions of vario, python, torch and the others."""
        return dict(self._header.get("versions") or {})

    @property
    def command(self) -> str:
        """How it was started."""
        return str(self._header.get("command") or "")

    @property
    def world_size(self) -> int:
        """Number of ranks of the job, recorded or not."""
        return int(self._header.get("world_size") or 1)

    @property
    def mesh(self) -> dict[str, int]:
        """How the ranks are arranged: the size of each dimension; empty where nobody knew."""
        return dict(self._header.get("mesh") or {})

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank that recorded something."""
        return {found.rank: found.host for found in self.noted_rank_states}

    @property
    def noted_rank_states(self) -> list[RankState]:
        """How each rank fares as its `rank.json` tells: its last step may be a second old while it runs."""
        return with_victims(status.rank_states(self.path, self._rank_status(), len(self.sessions) - 1))

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """First step and start of each time the job was started."""
        return status.sessions(self.path, status.read_run_json(self.path))

    @property
    def state(self) -> str:
        """running, finished, interrupted (Ctrl-C), crashed or stalled."""
        return status.state(self.path, status.read_run_json(self.path), self._rank_status())

    @property
    def ranks(self) -> list[int]:
        """Ranks that recorded something."""
        try:
            return status.rank_numbers(self.path)
        except FileNotFoundError as error:
            raise RunNotFound(f"{self.path}: has gone") from error

    @property
    def parts_off(self) -> list[PartOff]:
        """Parts of the monitor that failed and were switched off."""
        return [
            PartOff(int(content["rank"]), str(part.get("part")), part.get("step"), str(part.get("error")))
            for content in self._rank_status()
            for part in content.get("parts_off") or []
        ]

    @property
    def dropped_steps(self) -> int:
        """Steps that could not be recorded, on the rank that lost the most."""
        return max((int(content.get("dropped_steps") or 0) for content in self._rank_status()), default=0)

    @property
    def statistics(self) -> list[str]:
        """What can be worked out from the columns that were recorded."""
        chosen = self.config.get("statistics")
        if chosen is None:
            return [found.name for found in STATISTICS]
        columns = columns_needed(name for name in chosen if name in STATISTICS)
        return [found.name for found in STATISTICS if columns.issuperset(found.part.needs)]

    @property
    def usual_statistic(self) -> str:
        """The one that is meant where none is named: the norm, or what comes nearest of those that were recorded."""
        known = self.statistics
        return next((name for name in (*USUAL, *known) if name in known), USUAL[0])

    def check_recorded(self, needs: Sequence[str], statistic: str) -> None:
        """Refuse a statistic whose columns were not recorded."""
        chosen = self.config.get("statistics")
        if chosen is None:
            return
        recorded = columns_needed(name for name in chosen if name in STATISTICS)
        if missing := [name for name in needs if name not in recorded]:
            raise ConfigError(
                f"statistic: '{statistic}' needs {' and '.join(missing)}, which this run did not record. "
                f"Recorded for: {', '.join(chosen)}."
            )

    @property
    def rank_contents(self) -> list[dict[str, Any]]:
        """What each rank says of itself, lowest rank first."""
        return self._rank_status()

    def _rank_status(self) -> list[dict[str, Any]]:
        return status.read_ranks(self.path)

    def _present(self) -> list[dict[str, Any]]:
        return status.in_session(self._rank_status(), len(self.sessions) - 1)
