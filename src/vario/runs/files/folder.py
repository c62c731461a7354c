"""A run folder and its JSON files: what the run is, and the state of its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vario.core.attachments import FIGURE, TABLE, Attachment, Table
from vario.core.errors import ConfigError, RunNotFound
from vario.core.old_names import new_options
from vario.core.params import MOST_PARAMS, Params, flat
from vario.core.run_files.mirrors import place_of
from vario.remote.shipping.state_file import ShippingState, read_state
from vario.runs.files import attachments, status
from vario.runs.files.origin import Origin, read_diff, read_origin, read_output
from vario.runs.files.rank_failures import what_failed, with_victims
from vario.runs.files.status import NotOffered, PartOff, RankState
from vario.statistics import STATISTICS, columns_needed


def latest_params(sessions: Sequence[Mapping[str, Any]]) -> Params:
    """Return the hyper-parameters of the latest session that has any; a run of an older version has none."""
    found: Mapping[str, Any] = next((each["params"] for each in reversed(sessions) if each.get("params")), {})
    return dict(list(flat(found).items())[:MOST_PARAMS])


USUAL = ("norm", "rms", "absmax")
"""Statistics that show the size of a tensor, best first."""


class RunFolder:
    """What a run folder contains besides rows."""

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
    def place(self) -> str:
        """Its folder, or its URL: what to name to a command."""
        return place_of(self.path)

    @property
    def id(self) -> str:
        """A random id that stays the same when the folder is moved."""
        return str(self._header.get("id"))

    @property
    def started(self) -> float:
        """Unix seconds."""
        return float(self._header.get("started") or 0.0)

    @property
    def ended(self) -> float | None:
        """Unix seconds; None while it is running, or if the process died without writing it."""
        ended = status.read_run_json(self.path).get("ended")
        return None if ended is None else float(ended)

    @property
    def error(self) -> str | None:
        """The error the run crashed with, if it could still write it."""
        error = what_failed(self.noted_rank_states) or status.read_run_json(self.path).get("error")
        return None if error is None else str(error)

    @property
    def group(self) -> str | None:
        """The id shared by runs that one process started one after another; None if unknown."""
        group = self._header.get("group")
        return None if group is None else str(group)

    @property
    def config(self) -> dict[str, Any]:
        """The options it was watched with."""
        return new_options(self._header.get("config") or {})

    @property
    def params(self) -> Params:
        """The hyper-parameters of its latest session, given or found: flat names, plain values."""
        return latest_params(self.sessions)

    @property
    def param_sources(self) -> dict[str, str]:
        """Where each hyper-parameter was found: given, argparse, optimizer, ..."""
        return next((dict(each["param_sources"]) for each in reversed(self.sessions) if each.get("param_sources")), {})

    @property
    def versions(self) -> dict[str, str]:
        """Versions of vario, python, torch and the others."""
        return dict(self._header.get("versions") or {})

    @property
    def command(self) -> str:
        """The command line that started it."""
        return str(self._header.get("command") or "")

    @property
    def world_size(self) -> int:
        """Number of ranks of the job, recorded or not."""
        return int(self._header.get("world_size") or 1)

    @property
    def mesh(self) -> dict[str, int]:
        """The device mesh: the size of each dimension; empty if unknown."""
        return dict(self._header.get("mesh") or {})

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank that recorded something."""
        return {found.rank: found.host for found in self.noted_rank_states}

    @property
    def noted_rank_states(self) -> list[RankState]:
        """The state of each rank from its `rank.json`: the last step may be a second old during training."""
        return with_victims(status.rank_states(self.path, self._rank_status(), len(self.sessions) - 1))

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """First step and start time of each session."""
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
            raise RunNotFound(f"{self.path}: no longer exists") from error

    @property
    def parts_off(self) -> list[PartOff]:
        """Parts of the monitor that failed and were switched off."""
        return [
            PartOff(int(content["rank"]), str(part.get("part")), part.get("step"), str(part.get("error")))
            for content in self._rank_status()
            for part in content.get("parts_off") or []
        ]

    @property
    def not_offered(self) -> list[NotOffered]:
        """What was not recorded because the model's framework does not offer it; nothing has failed there."""
        found = self._header.get("not_offered") or []
        return [NotOffered(str(each["quantity"]), str(each["missing"])) for each in found]

    @property
    def dropped_steps(self) -> int:
        """Steps that could not be recorded, on the rank that lost most."""
        return max((int(content.get("dropped_steps") or 0) for content in self._rank_status()), default=0)

    @property
    def origin(self) -> Origin:
        """What it was started from: command, code, environment, packages; empty for a run of an older version."""
        return read_origin(self.path, self.ranks)

    @property
    def code_diff(self) -> str:
        """The changes since the commit, as git prints them."""
        return read_diff(self.path, self.ranks)

    @property
    def output(self) -> str:
        """What its script printed: the first and the last lines."""
        return read_output(self.path, self.ranks)

    @property
    def shipping(self) -> ShippingState | None:
        """Whether it is being copied elsewhere, by the process that does; None if it is not."""
        return read_state(self.path)

    @property
    def attachments(self) -> list[Attachment]:
        """The figures and tables that were kept beside the run, by step."""
        return attachments.read_attachments(self.path, self.ranks)

    def figure(self, name: str, step: int | None = None, rank: int | None = None) -> bytes:
        """Return the PNG of a figure: the latest of this name, or that of a step."""
        return attachments.figure_of(self.path, self._attachment(FIGURE, name, step, rank))

    def figure_path(self, name: str, step: int | None = None, rank: int | None = None) -> Path:
        """Return the file of a figure, which is a PNG."""
        return attachments.path_of(self.path, self._attachment(FIGURE, name, step, rank))

    def table(self, name: str, step: int | None = None, rank: int | None = None) -> Table:
        """Return a table: the latest of this name, or that of a step."""
        return attachments.table_of(self.path, self._attachment(TABLE, name, step, rank))

    def _attachment(self, kind: str, name: str, step: int | None, rank: int | None) -> Attachment:
        return attachments.choose(self.attachments, kind, name, step, rank)

    @property
    def statistics(self) -> list[str]:
        """The statistics that can be computed from the recorded columns."""
        chosen = self.config.get("statistics")
        if chosen is None:
            return [found.name for found in STATISTICS]
        columns = columns_needed(name for name in chosen if name in STATISTICS)
        return [found.name for found in STATISTICS if columns.issuperset(found.part.needs)]

    @property
    def usual_statistic(self) -> str:
        """The default statistic: the norm, or the closest one that was recorded."""
        known = self.statistics
        return next((name for name in (*USUAL, *known) if name in known), USUAL[0])

    def check_recorded(self, needs: Sequence[str], statistic: str) -> None:
        """Raise ConfigError for a statistic whose columns were not recorded."""
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
        """The content of each rank's `rank.json`, lowest rank first."""
        return self._rank_status()

    def _rank_status(self) -> list[dict[str, Any]]:
        return status.read_ranks(self.path)

    def _present(self) -> list[dict[str, Any]]:
        return status.in_session(self._rank_status(), len(self.sessions) - 1)
