"""Imports msprobe's recordings as a vario run that every report can read."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.compat.msprobe.conversion import check_found, is_free
from vario.compat.msprobe.csv_folders import CsvFile, RankFolder, find_files, find_folders
from vario.compat.msprobe.csv_rows import NO_MICRO_STEP, Reading, StepRows, read_header
from vario.compat.msprobe.csv_summaries import STATISTICS, number_summaries, shape_of, summaries
from vario.compat.msprobe.unfinished import whole_folder
from vario.compat.msprobe.wording import Repeated, continued, counted
from vario.core.errors import RunError, RunTaken
from vario.core.package import versions
from vario.core.records import ROOT, Frame, Scalars, StepRecord, Structure, Table
from vario.core.run_header import RunHeader
from vario.sinks.store import Store

log = logging.getLogger("vario")

QUANTITIES = {
    "param_origin": "weight_before",
    "param": "weight_before",
    "actv": "activation",
    "actv_grad": "activation_gradient",
    "grad_unreduced": "gradient_accumulated",
    "exp_avg": "moment_before",
    "exp_avg_sq": "moment_before",
    "grad_reduced": "gradient_applied",
    "other": "direction",
    "param_updated": "weight",
    "attention_hook": "attention",
    "linear_hook": "spectrum",
    "moe_router_weight_hook": "router",
    "moe_router_logit_hook": "router",
}
"""Our names for the kinds of files, in the order of a step. Any other file is an optimizer state of that name."""

_FEATURES = {
    "attention_hook": ("attention", ("entropy", "softmax_max")),
    "linear_hook": ("linear", ("sr", "kernel_norm")),
    "moe_router_weight_hook": ("moe_router", ("router_weight_similarity",)),
    "moe_router_logit_hook": ("moe_router", ("per_token_expert_entropy",)),
}
"""Kinds whose columns are plain numbers: what ends the module's name, and the columns."""
_PARAMETER_KINDS = ("param_updated", "param_origin", "param", "grad_reduced", "grad_unreduced")
_SIDE = re.compile(r"(?:(?P<module>.*)\.|\.?)(?P<side>input|output)(?:_(?P<nth>\d+))?", re.DOTALL)
_CHUNK_BYTES = 4 << 20
"""How much CSV of each kind is in memory at a time: all kinds are read in parallel."""


@dataclass(frozen=True)
class Imported:
    """What was imported."""

    path: Path
    ranks: list[int]
    num_steps: int
    """The number of steps on the rank with the most."""
    num_rows: int
    remarks: list[str]
    """What was skipped, and why."""

    @property
    def line(self) -> str:
        """The result in one line."""
        amount = f"{counted(self.num_steps, 'step')}, {counted(self.num_rows, 'row')}"
        return f"{self.path}  {amount}, {counted(len(self.ranks), 'rank')}"


def import_msprobe(
    source: str | Path,
    directory: str | Path = "vario_runs",
    name: str | None = None,
    time_start: str | None = None,
    time_end: str | None = None,
) -> Imported:
    """Write msprobe's output folder, or the folder of one rank, as a run under `directory`.

    The run gets its name when it is complete; an import that fails or is interrupted leaves nothing behind.
    """
    folders = find_folders(source, time_start, time_end)
    check_found(list(find_files(folders)), folders)
    path = Path(directory).expanduser() / (name or f"msprobe-{folders[0].started:%Y%m%d-%H%M%S}")
    if not is_free(path):
        raise RunTaken(f"{path}: already exists. Choose another --name, or remove that folder.")
    ranks = sorted({folder.rank for folder in folders})
    remarks: list[str] = []

    def remark(text: str) -> None:
        remarks.append(text)
        log.warning("%s", text)

    for text in continued(folders):
        remark(text)
    command = f"vario import --from msprobe {source}"
    counts = []
    try:
        with whole_folder(path) as unfinished:
            for rank in ranks:
                own = [folder for folder in folders if folder.rank == rank]
                counts.append(_import_rank(unfinished, rank, ranks, own, command, remark))
    except OSError as error:
        raise RunError(f"{path}: not imported: {error}") from error
    return Imported(path, ranks, max(steps for steps, _ in counts), sum(rows for _, rows in counts), remarks)


def _import_rank(
    path: Path, rank: int, ranks: list[int], folders: Sequence[RankFolder], command: str, remark: Callable[[str], None]
) -> tuple[int, int]:
    """Write one rank and return the number of its steps and rows."""
    files = find_files(folders)
    columns = _columns(files)
    if any(kind not in _FEATURES for kind in files) and "shape" not in columns:
        remark(
            f"{folders[0].path}: the files have no column `shape`, so sizes are unknown: norm, min, max and nans are "
            "kept; mean and zeros, which need the size, are not"
        )
    if any(kind in _FEATURES for kind in files):
        columns |= {*STATISTICS, "shape"}  # of a plain number all of them are known
    kinds = sorted(files, key=_place)
    readers = [_Kind(kind, files[kind], remark) for kind in kinds]
    has_stages = any(reader.has_stages for reader in readers)
    for reader in readers:
        reader.has_stages = has_stages
    config = {
        "quantities": list(dict.fromkeys(quantity_of(kind) for kind in kinds)),
        "statistics": _statistics(columns),
        "ranks": ranks,
        "eps": 1e-8,
    }
    first_written = min((file.path.stat().st_mtime for of_kind in files.values() for file in of_kind), default=math.inf)
    started = min(folders[0].started.timestamp(), first_written)
    world_size = max(ranks) + 1
    structure = _structure(readers)
    header = RunHeader(path, rank, world_size, config, versions(), command, structure, None, False, started)
    repeated = Repeated()
    counts = _write_rank(header, readers, repeated)
    for text in repeated.remarks(f"rank {rank}"):
        remark(text)
    return counts


def _write_rank(header: RunHeader, readers: Sequence[_Kind], repeated: Repeated) -> tuple[int, int]:
    store = Store()
    num_steps = num_rows = 0
    try:
        store.open(header)
        merged = heapq.merge(*(reader.steps() for reader in readers), key=itemgetter(0))
        for step, of_step in itertools.groupby(merged, key=itemgetter(0)):
            found = [(kind, rows) for _, kind, rows in of_step]
            for _, rows in found:
                repeated.add(rows)
            record = _record(step, found)
            store.write(record)
            num_steps += 1
            num_rows += sum(len(frame.targets) for frame in record.frames)
        store.close("finished", None)
    except BaseException:
        # Its thread must stop writing before the folder is removed; report the first error.
        with suppress(Exception):
            store.close("failed", None)
        raise
    if store.dropped_steps:
        raise RunError(f"{counted(store.dropped_steps, 'step')} of rank {header.rank} could not be written")
    return num_steps, num_rows


def _columns(files: Mapping[str, Sequence[CsvFile]]) -> set[str]:
    """The columns of all files whose rows are tensors: a restart or a changed config may bring others."""
    headers = (read_header(file) for kind, of_kind in files.items() if kind not in _FEATURES for file in of_kind)
    return {column for header in headers for column in header}


def quantity_of(kind: str) -> str:
    """Return the quantity of a kind of file; an unknown kind is an optimizer state."""
    return QUANTITIES.get(kind, "moment_before")


def _place(kind: str) -> tuple[int, str]:
    known = list(QUANTITIES)
    return (known.index(kind) if kind in known else known.index("exp_avg_sq"), kind)


def _statistics(columns: Iterable[str]) -> list[str]:
    """The statistics that can be computed from these columns."""
    have = set(columns)
    needs = {
        "norm": {"norm"},
        "mean": {"mean", "shape"},
        "rms": {"norm", "shape"},
        "std": {"norm", "mean", "shape"},
        "min": {"min"},
        "max": {"max"},
        "absmax": {"min", "max"},
        "nans": set[str](),
        "infs": set[str](),
        "zeros": {"zeros", "shape"},
        "count": {"shape"},
    }
    return [name for name, columns_needed in needs.items() if columns_needed <= have]


@dataclass
class _Kind:
    """Reads the files of one kind in order."""

    kind: str
    files: Sequence[CsvFile]
    remark: Callable[[str], None]
    has_stages: bool = field(init=False)
    """Whether the model has several pipeline stages on this rank: then their numbers are part of the names."""

    def __post_init__(self) -> None:
        columns = _FEATURES[self.kind][1] if self.kind in _FEATURES else STATISTICS
        reading = Reading(columns, ("shape", "dtype"), _CHUNK_BYTES)
        steps = reading.steps(self.files, self.remark)
        self.first = next(steps, None)
        self._steps = itertools.chain([] if self.first is None else [self.first], steps)
        stages = set() if self.first is None else set(self.first.rows.column("vpp_stage").to_pylist())
        self.has_stages = bool(stages - {0})

    def steps(self) -> Iterator[tuple[int, _Kind, StepRows]]:
        """Every step with its rows."""
        for rows in self._steps:
            yield rows.step, self, rows

    def targets(self, rows: StepRows) -> list[str]:
        """Return vario's names of the rows."""
        if not rows.same_targets or rows is self.first:
            self._targets = [self.name(stage, name) for stage, name, _ in rows.targets()]
        return self._targets

    def name(self, stage: int, name: str) -> str:
        """`layers.0.mlp:output.1`, from stage 0 and `layers.0.mlp.output_1`."""
        prefix = f"{stage}." if self.has_stages or stage else ""
        quantity = quantity_of(self.kind)
        if quantity in ("activation", "activation_gradient"):
            match = _SIDE.fullmatch(name)
            if match:
                nth = "" if match["nth"] is None else f".{match['nth']}"
                return f"{prefix}{match['module'] or ROOT}:{match['side']}{nth}"
        elif quantity == "moment_before":
            return f"{prefix}{name}:{self.kind}"
        elif self.kind in _FEATURES:
            name = name.removesuffix(f".{_FEATURES[self.kind][0]}") or ROOT
        return prefix + name


def _record(step: int, found: Sequence[tuple[_Kind, StepRows]]) -> StepRecord:
    """One step of all kinds; the order of its rows is that of forward, backward and update."""
    pieces: list[tuple[int, int, str, list[str], Table]] = []
    for kind, rows in found:
        targets = kind.targets(rows)
        micro_steps = rows.rows.column("micro_step").to_numpy()
        if kind.kind in _FEATURES:
            columns = _FEATURES[kind.kind][1]
            targets = [f"{target}:{column}" for target in targets for column in columns]
            micro_steps = np.repeat(micro_steps, len(columns))
            table, is_there = number_summaries(rows, columns)
        else:
            table, is_there = summaries(rows)
        for micro_step in np.unique(micro_steps).tolist():
            chosen = np.flatnonzero((micro_steps == micro_step) & is_there)
            # Rows without a micro-step come before the first (weights) or after the last (all others).
            when = (
                micro_step
                if micro_step != NO_MICRO_STEP
                else (-1 if quantity_of(kind.kind) == "weight_before" else 2**31)
            )
            own = [targets[row] for row in chosen]
            pieces.append((when, max(0, micro_step), quantity_of(kind.kind), own, table[chosen]))
    pieces.sort(key=itemgetter(0))  # stable: kinds stay in their order
    return StepRecord(step, _frames(step, pieces), Scalars(step, max(rows.time for _, rows in found)))


def _frames(step: int, pieces: Sequence[tuple[int, int, str, list[str], Table]]) -> list[Frame]:
    together: dict[tuple[str, int], tuple[list[str], list[npt.NDArray[np.int32]], list[Table]]] = {}
    order = 0
    for _, micro_step, quantity, targets, table in pieces:
        names, orders, tables = together.setdefault((quantity, micro_step), ([], [], []))
        names += targets
        orders.append(np.arange(order, order + len(targets), dtype=np.int32))
        tables.append(table)
        order += len(targets)
    return [
        Frame(quantity, step, micro_step, names, np.concatenate(orders), np.concatenate(tables))
        for (quantity, micro_step), (names, orders, tables) in together.items()
        if names
    ]


def _structure(readers: Sequence[_Kind]) -> Structure:
    """Modules and parameters, from the names and shapes of the first step."""
    parameters: dict[str, dict[str, Any]] = {}
    modules: dict[str, int] = {}
    for reader in sorted(readers, key=lambda reader: reader.kind not in _PARAMETER_KINDS):
        if reader.first is None:
            continue
        for nth, target in enumerate(reader.targets(reader.first)):
            if reader.kind in _PARAMETER_KINDS and target not in parameters:
                row = reader.first.rows.slice(nth, 1).to_pylist()[0]
                parameters[target] = {
                    "name": target,
                    "shape": shape_of(row.get("shape")),
                    "dtype": str(row.get("dtype") or "").removeprefix("torch.") or None,
                    "trainable": True,
                    "shared_with": [],
                }
                module = target.rpartition(".")[0] or ROOT
                modules[module] = modules.get(module, 0) + math.prod(parameters[target]["shape"] or [0])
            elif quantity_of(reader.kind) in ("activation", "activation_gradient"):
                modules.setdefault(target.rpartition(":")[0], 0)
    return {
        "modules": [{"name": name, "class": None, "num_parameters": count} for name, count in modules.items()],
        "parameters": list(parameters.values()),
    }
