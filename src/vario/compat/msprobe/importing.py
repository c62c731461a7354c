"""What msprobe recorded, as a vario run that every report reads."""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.compat.msprobe.conversion import check_found
from vario.compat.msprobe.csv_folders import CsvFile, RankFolder, find_files, find_folders
from vario.compat.msprobe.csv_rows import NO_MICRO_STEP, Reading, StepRows, read_header
from vario.errors import RunError
from vario.records import (
    COUNT,
    INFS,
    MAX,
    MIN,
    NANS,
    ROOT,
    SUM,
    SUM_SQUARES,
    ZEROS,
    Frame,
    Scalars,
    StepRecord,
    Structure,
    Table,
    empty_table,
)
from vario.sinks import RunHeader
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
"""What the kinds of files are called here, in the order in which a step makes them. Any other file is an optimizer
state of that name."""

_STATISTICS = ("norm", "min", "max", "mean", "zeros", "nans")
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
"""How much CSV of each kind is held at a time: all kinds are read side by side."""


@dataclass(frozen=True)
class Imported:
    """What was imported."""

    path: Path
    ranks: list[int]
    num_steps: int
    """Of the rank that has the most."""
    num_rows: int
    remarks: list[str]
    """What was left out, and why."""


def import_msprobe(
    source: str | Path,
    directory: str | Path = "vario_runs",
    name: str | None = None,
    time_start: str | None = None,
    time_end: str | None = None,
) -> Imported:
    """Write what msprobe left in its output folder, or in the folder of one rank, as a run under `directory`."""
    folders = find_folders(source, time_start, time_end)
    check_found(list(find_files(folders)), folders, list(QUANTITIES))
    path = Path(directory).expanduser() / (name or f"msprobe-{folders[0].started:%Y%m%d-%H%M%S}")
    ranks = sorted({folder.rank for folder in folders})
    remarks: list[str] = []
    command = f"vario import --from msprobe {source}"
    counts = []
    for rank in ranks:
        own = [folder for folder in folders if folder.rank == rank]
        counts.append(_import_rank(path, rank, ranks, own, command, remarks))
    return Imported(path, ranks, max(steps for steps, _ in counts), sum(rows for _, rows in counts), remarks)


def _import_rank(
    path: Path, rank: int, ranks: list[int], folders: Sequence[RankFolder], command: str, remarks: list[str]
) -> tuple[int, int]:
    """Write one rank; the number of its steps and rows."""

    def remark(text: str) -> None:
        remarks.append(text)
        log.warning("%s", text)

    files = find_files(folders)
    columns = {
        column for of_kind in files.values() for file in (of_kind[0], of_kind[-1]) for column in read_header(file)
    }
    kinds = sorted(files, key=_place)
    readers = [_Kind(kind, files[kind], remark) for kind in kinds]
    has_stages = any(reader.has_stages for reader in readers)
    for reader in readers:
        reader.has_stages = has_stages
    if files and "shape" not in columns:
        remark(
            f"{folders[0].path}: the files have no column `shape`, so sizes are unknown: norm, min, max and nans are "
            "kept; mean and zeros, which need the size, are not"
        )
    config = {
        "quantities": list(dict.fromkeys(quantity_of(kind) for kind in kinds)),
        "statistics": _statistics(columns),
        "ranks": ranks,
        "eps": 1e-8,
    }
    first_written = min((file.path.stat().st_mtime for of_kind in files.values() for file in of_kind), default=math.inf)
    started = min(folders[0].started.timestamp(), first_written)
    store = Store()
    world_size = max(ranks) + 1
    structure = _structure(readers)
    store.open(RunHeader(path, rank, world_size, config, _versions(), command, structure, None, False, started))
    num_steps = num_rows = 0
    merged = heapq.merge(*(reader.steps() for reader in readers), key=itemgetter(0))
    for step, found in itertools.groupby(merged, key=itemgetter(0)):
        record = _record(step, [(kind, rows) for _, kind, rows in found])
        store.write(record)
        num_steps += 1
        num_rows += sum(len(frame.targets) for frame in record.frames)
    store.close("finished", None)
    if store.dropped_steps:
        raise RunError(f"{path}: {store.dropped_steps} steps could not be written")
    return num_steps, num_rows


def quantity_of(kind: str) -> str:
    """What a kind of file holds; one we do not know is a state of the optimizer."""
    return QUANTITIES.get(kind, "moment_before")


def _place(kind: str) -> tuple[int, str]:
    known = list(QUANTITIES)
    return (known.index(kind) if kind in known else known.index("exp_avg_sq"), kind)


def _statistics(columns: Iterable[str]) -> list[str]:
    """The statistics that can be worked out from these columns."""
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


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {"python": platform.python_version(), **{name: version(name) for name in ("vario", "numpy", "pyarrow")}}


@dataclass
class _Kind:
    """Reads the files of one kind in order."""

    kind: str
    files: Sequence[CsvFile]
    remark: Callable[[str], None]
    has_stages: bool = field(init=False)
    """Whether the model has several pipeline stages on this rank: then their numbers are part of the names."""

    def __post_init__(self) -> None:
        columns = _FEATURES[self.kind][1] if self.kind in _FEATURES else _STATISTICS
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
        """What vario calls the rows."""
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
            table, is_there = _feature_table(kind, rows), np.ones(len(targets), np.bool_)
        else:
            table, is_there = _summaries(rows)
        for micro_step in np.unique(micro_steps).tolist():
            chosen = np.flatnonzero((micro_steps == micro_step) & is_there)
            # What knows no micro-step is seen before the first (weights) or after the last (all others).
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


def _summaries(rows: StepRows) -> tuple[Table, npt.NDArray[np.bool_]]:
    """A Summary of each row, and whether there was a tensor at all."""
    norm, low, high, mean, zeros, nans = rows.values(_STATISTICS).T
    counts = _counts(rows)
    table = empty_table(len(norm))
    table[:, COUNT] = counts
    with np.errstate(all="ignore"):
        table[:, SUM] = mean * counts
        table[:, SUM_SQUARES] = np.square(norm)
        table[:, ZEROS] = np.round(zeros * counts)
    table[:, MIN], table[:, MAX] = low, high
    # msprobe counts no infinities, but they show in the extremes, or else in the norm: at least so many there are.
    table[:, INFS] = np.maximum(np.isinf(low).astype(float) + np.isinf(high), np.isinf(norm))
    # Where NaN were not counted, any other number that is NaN tells of one at least; of nothing there is no minimum.
    present = [name for name in _STATISTICS if name in rows.rows.column_names]
    is_nan = np.isnan(rows.values(present)).any(axis=1) & (counts != 0)
    table[:, NANS] = np.where(np.isnan(nans), is_nan, nans)
    if "shape" not in rows.rows.column_names and "nans" not in present:
        return table, np.ones(len(norm), np.bool_)
    # A tensor that was not there (an input without a gradient) leaves a row of `nan` in every column.
    return table, np.isfinite(counts) | ~np.isnan(nans)


def _counts(rows: StepRows) -> npt.NDArray[np.float64]:
    if "shape" not in rows.rows.column_names:
        return np.full(rows.rows.num_rows, np.nan)
    shapes = rows.rows.column("shape").combine_chunks().dictionary_encode()
    sizes = [_count(text) for text in shapes.dictionary.to_pylist()]
    indices = shapes.indices.fill_null(len(sizes)).to_numpy()
    counts: npt.NDArray[np.float64] = np.array([*sizes, np.nan])[indices]
    return counts


def _shape(text: str | None) -> list[int] | None:
    """The numbers in `[4, 8]` or `(4, 8)`; None for anything else."""
    if text is None or not re.fullmatch(r"[\[(][\d, ]*[\])]", text):
        return None
    return [int(number) for number in re.findall(r"\d+", text)]


def _count(text: str | None) -> float:
    shape = _shape(text)
    return math.nan if shape is None else float(math.prod(shape))


def _feature_table(kind: _Kind, rows: StepRows) -> Table:
    """A Summary of each plain number."""
    values = rows.values(_FEATURES[kind.kind][1]).reshape(-1)
    table = empty_table(len(values))
    table[:, COUNT] = 1
    for column in (SUM, MIN, MAX):
        table[:, column] = values
    table[:, SUM_SQUARES] = np.square(values)
    table[:, NANS] = np.isnan(values)
    table[:, INFS] = np.isinf(values)
    table[:, ZEROS] = values == 0
    return table


def _structure(readers: Sequence[_Kind]) -> Structure:
    """Modules and parameters as far as the names and shapes of the first step tell."""
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
                    "shape": _shape(row.get("shape")),
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
