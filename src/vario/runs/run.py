"""The Run class: reads a run's files, its findings, and its HTML for notebooks."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from vario.core.errors import RunError
from vario.rules.api.alerts import Alert, Incident
from vario.runs.files.run_paths import find_run, local_folder, run_folders
from vario.runs.findings.rank_comparison import compare_ranks
from vario.runs.findings.stored_alerts import Stored, read_stored
from vario.runs.reader import Rank, RunReader
from vario.runs.views.tensors.channels import TensorChannels, read_channels
from vario.runs.views.tensors.distributions import Distribution, read_distribution
from vario.runs.views.tensors.precision import PrecisionTable, precision_table

log = logging.getLogger("vario")


class Run(RunReader):
    """One run folder. Whatever can change while the run is written is read again on each access."""

    @property
    def alerts(self) -> list[Alert]:
        """What the rules found during training, on all ranks, by step; of an ended run also by comparing its ranks."""
        return self._found().alerts

    @property
    def incidents(self) -> list[Incident]:
        """The incidents of these alerts: one per root cause."""
        return self._found().incidents

    def _found(self) -> Stored:
        compared = compare_ranks(self)
        return read_stored(self, () if compared is None else compared.alerts)

    def distribution(self, target: str, quantity: str, rank: Rank = "all") -> Distribution:
        """Return how the elements of a tensor are distributed over powers of two, at the steps that recorded it."""
        return read_distribution(self, target, quantity, rank)

    def precision(self, quantity: str | None = None, step: int | None = None, rank: Rank = "all") -> PrecisionTable:
        """Return what each tensor would lose in fp16, bf16 and fp8, at a step (default: the latest)."""
        return precision_table(self, quantity, step, rank)

    def channels(self, step: int | None = None, rank: Rank = "all") -> list[TensorChannels]:
        """Return the largest channels of weights and activations at a step (default: the latest)."""
        return read_channels(self, step, rank)

    def _repr_html_(self) -> str:
        from vario.runs.notebook_html import run_html

        return run_html(self)


def open_run(path: str | os.PathLike[str]) -> Run:
    """Open a run: its folder, a folder of runs (opens the latest run), or a name under ./vario_runs.

    Folders may be elsewhere: `s3://bucket/runs/first`, `sftp://host/scratch/vario_runs`. See docs/remote.md.
    """
    return Run(find_run(path))


def list_runs(directory: str | os.PathLike[str]) -> list[Run]:
    """Return all runs in a folder or at a URL, oldest first; skips one that cannot be read, with a warning."""
    return runs_at(run_folders(local_folder(directory)))


def runs_at(folders: Iterable[Path]) -> list[Run]:
    """Return the runs in these folders, oldest first; skips one that cannot be read, with a warning."""
    runs = []
    for folder in folders:
        try:
            run = Run(folder)
            run.parts_off  # noqa: B018 - reads every rank.json: a damaged one shows now
            runs.append(run)
        except RunError as error:
            log.warning("skipped: %s", error)
    return sorted(runs, key=lambda run: run.started)
