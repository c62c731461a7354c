"""The largest channels of weights and activations, and how concentrated they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.core.elements.bins import DETAIL
from vario.core.elements.channels import QUANTITY, Channel, TopChannels, decode, merge
from vario.core.errors import ConfigError, RunCorrupt
from vario.core.records import COLUMNS, COUNT, MAX, SUM, ZEROS, Table, merge_all
from vario.runs.files.bin_rows import with_bins
from vario.runs.files.budget import Budget
from vario.runs.files.store_reader import summaries
from vario.runs.reader import Rank, RunReader

NONE = "channel: not recorded. Watch it: vario.watch(..., quantities=[..., 'channel']) (docs/channels.md)"


@dataclass(frozen=True)
class TensorChannels:
    """The channels of one tensor at one step."""

    target: str
    kind: str
    """rows, columns or features."""
    step: int
    num_channels: int
    num_dead: int
    """Channels whose elements are all zero; over several ranks at most so many."""
    mean_absmax: float
    """The mean of the channels' largest magnitudes, over ranks too."""
    peak: float
    """The largest of these over their mean."""
    share: float
    """The share of the tensor's squares in its largest channel."""
    top_share: float
    """The share in the eight largest."""
    top: tuple[Channel, ...]
    """The channels with the largest elements, largest first."""


def read_channels(run: RunReader, step: int | None = None, rank: Rank = "all") -> list[TensorChannels]:
    """Read the channels of all tensors at a step (default: the latest); raises ConfigError if there are none.

    Over all ranks the largest are those of any rank.
    """
    ranks = [number for number in (run.ranks if rank == "all" else [rank]) if QUANTITY in run.quantities(number)]
    steps = run.steps(QUANTITY, rank) if ranks else np.zeros(0, np.int64)
    if not len(steps):
        raise ConfigError(NONE)
    chosen = int(steps[-1]) if step is None else step
    parts: dict[str, list[TopChannels]] = {}
    rows: dict[str, list[Table]] = {}
    budget = Budget()
    for number in ranks:
        columns = ["target", DETAIL, *COLUMNS]
        table = with_bins(run.reader(number, QUANTITY).read(columns, run.sessions, step=chosen, budget=budget))
        found = zip(table.column("target").to_pylist(), _decoded(run, table), summaries(table), strict=True)
        for target, top, row in found:
            parts.setdefault(target, []).append(top)
            rows.setdefault(target, []).append(row)
    if not parts:
        near = int(steps[np.abs(steps - chosen).argmin()])
        raise ConfigError(f"step: channel was not recorded at step {chosen}. The nearest is {near}.")
    return [_tensor(target, chosen, merge(tops), np.stack(rows[target])) for target, tops in parts.items()]


def _tensor(target: str, step: int, top: TopChannels, rows: Table) -> TensorChannels:
    whole = merge_all(np.asarray(rows))[0]
    mean = float(whole[SUM] / whole[COUNT])
    name, _, kind = target.rpartition(":")
    return TensorChannels(
        target=name,
        kind=kind,
        step=step,
        num_channels=top.num_channels,
        # Rows of several ranks are of the same channels: one is dead if it is so on all of them.
        num_dead=int(min(row[ZEROS] for row in rows)),
        mean_absmax=mean,
        peak=float(whole[MAX] / mean) if mean else float("nan"),
        share=top.share(),
        top_share=top.share(len(top.channels)),
        top=top.channels,
    )


def _decoded(run: RunReader, table: Any) -> list[TopChannels]:
    try:
        for chunk in table.column(DETAIL).chunks:
            chunk.validate(full=True)
        return [decode(row) for row in table.column(DETAIL).to_pylist()]
    except ValueError as error:
        raise RunCorrupt(f"{run.path}: its channels cannot be read: {error}") from error


def channel_line(run: RunReader, least_peak: float = 20.0) -> str:
    """Return what a report says about channels; empty if none were recorded."""
    if not run.ranks or QUANTITY not in run.quantities("all"):
        return ""
    tensors = read_channels(run)
    known = [one for one in tensors if one.peak >= least_peak and one.top]
    dead = sum(one.num_dead for one in tensors if one.kind == "features")
    dead_text = f"{dead:,} dead features" if dead else ""
    if not known:
        return f"no channel is {least_peak:g} times as large as the mean{'; ' + dead_text if dead_text else ''}"
    one = max(known, key=lambda tensor: tensor.peak)
    text = (
        f"{one.kind[:-1]} {one.top[0].index} of {one.target}: {one.peak:.3g} times the mean channel, "
        f"{100 * one.share:.2g} % of the squares"
    )
    return f"{text}; {dead_text}" if dead_text else text
