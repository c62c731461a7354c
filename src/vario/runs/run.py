"""A run, opened: what is read of its files, what was found in it, and how a notebook shows it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from vario.core.errors import RunError
from vario.rules.api.alerts import Alert, Incident
from vario.runs.files.run_paths import find_run, run_folders
from vario.runs.findings.stored_alerts import read_alerts, read_incidents
from vario.runs.reader import RunReader

log = logging.getLogger("vario")


class Run(RunReader):
    """One run folder. What can change while the run is written is read anew each time it is asked for."""

    @property
    def alerts(self) -> list[Alert]:
        """What the rules found while it was watched, on all ranks, by step."""
        return read_alerts(self)

    @property
    def incidents(self) -> list[Incident]:
        """What these alerts come to: one incident for each cause."""
        return read_incidents(self)

    def _repr_html_(self) -> str:
        from vario.runs.notebook_html import run_html

        return run_html(self)


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run: its folder, a folder of runs (the newest is taken), or a name under ./vario_runs."""
    return Run(find_run(path))


def list_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """All runs in a folder, oldest first; one that cannot be read is named in a warning and left out."""
    return runs_at(run_folders(Path(directory)))


def runs_at(folders: Iterable[Path]) -> list[Run]:
    """The runs in these folders, oldest first; one that cannot be read is named in a warning and left out."""
    runs = []
    for folder in folders:
        try:
            run = Run(folder)
            run.parts_off  # noqa: B018 - reads every rank.json: a damaged one shows now
            runs.append(run)
        except RunError as error:
            log.warning("left out: %s", error)
    return sorted(runs, key=lambda run: run.started)
