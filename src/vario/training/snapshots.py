"""Take a snapshot: which parameters an incident is about, and copies of what is kept for them."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vario.backends.protocols import capabilities as offered
from vario.core.records import COLUMNS, ROOT, StepRecord
from vario.rules.api.alerts import Incident
from vario.store.snapshots import SnapshotFolder

SAMPLE_BYTES = 2**20
"""A tensor that does not fit is sampled down to this size, if there is room."""
LEAST_BYTES = 4096
"""With less room than this a tensor is left out."""
BATCHES_KEPT = 8


@dataclass(frozen=True)
class Snapshot:
    """Copies of tensors, and a description of each."""

    arrays: dict[str, npt.NDArray[Any]]
    tensors: dict[str, dict[str, Any]]
    left_out: list[str]


class Batches:
    """Summaries of recent inputs of the outermost modules, if recorded."""

    def __init__(self) -> None:
        self._latest: deque[dict[str, Any]] = deque(maxlen=BATCHES_KEPT)

    def see(self, record: StepRecord) -> None:
        """Keep the inputs in a step's record."""
        for frame in record.frames:
            if frame.quantity != "activation":
                continue
            inputs = {
                target: {name: _plain(value) for name, value in zip(COLUMNS, row, strict=True)}
                for target, row in zip(frame.targets, frame.summaries, strict=True)
                if _is_input(target)
            }
            if inputs:
                self._latest.append({"step": frame.step, "micro_step": frame.micro_step, "inputs": inputs})

    def latest(self) -> list[dict[str, Any]]:
        """Return the inputs of the last steps."""
        return list(self._latest)


def parameters_of(incident: Incident, known: Sequence[str]) -> list[str]:
    """Return the parameters an incident names, directly or by module, nearest first; all of them if it names none."""
    found: dict[str, None] = {}
    for place in _places(incident):
        if place in known:
            found[place] = None
        else:
            found.update((name, None) for name in known if name.startswith(f"{place}."))
    return list(found or known)


def take(kept: offered.Snapshots, names: Sequence[str], folder: SnapshotFolder) -> Snapshot:
    """Copy what this rank keeps for these parameters, while there is room."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    num_bytes = 0
    for name, tensor in kept.kept_of(names):
        room = folder.room(len(arrays) + 1) - num_bytes
        copy = kept.host_copy(tensor, room, min(room, SAMPLE_BYTES)) if room >= LEAST_BYTES else None
        if copy is None:
            left_out.append(name)
            continue
        arrays[name] = copy.array
        num_bytes += copy.array.nbytes
        tensors[name] = {"shape": list(copy.shape), "dtype": copy.dtype, "saved_as": str(copy.array.dtype)}
        if copy.stride > 1:
            tensors[name]["every_nth_element"] = copy.stride
    return Snapshot(arrays, tensors, left_out)


def _places(incident: Incident) -> Iterator[str]:
    named = [incident.place, incident.lead.target, *incident.lead.others]
    for alert in incident.alerts:
        named += [alert.target, *alert.others]
    for place in named:
        if place:
            # Some targets read `gradient of 'layers.0.weight'`.
            quoted = re.search(r"'([^']+)'", place)
            yield (quoted[1] if quoted else place).partition(":")[0]


def _is_input(target: str) -> bool:
    module, _, path = target.partition(":")
    return (module == ROOT or module.endswith(f".{ROOT}")) and path.split(".")[0] == "input"


def _plain(value: float) -> float | str:
    return float(value) if np.isfinite(value) else str(float(value))
