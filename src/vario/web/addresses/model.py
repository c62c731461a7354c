"""Endpoints for the model of a run with its latest numbers, its memory, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vario.core.errors import ConfigError
from vario.core.records import ROOT
from vario.runs.files.status import PartOff
from vario.runs.files.unmerged import Unmerged, find_unmerged
from vario.runs.run import Run
from vario.runs.views.curves import read_curve
from vario.runs.views.heat import read_heat
from vario.runs.views.status.quantity_size import newest_step
from vario.web import bodies
from vario.web.addresses.overview import RUN
from vario.web.addresses.run_parts import sessions_of
from vario.web.api.answers import FRESH_SECONDS, Endpoint
from vario.web.served import Served

LATEST: tuple[tuple[str, str, str], ...] = (
    ("gradient", "norm", ""),
    ("weight", "rms", ""),
    ("update", "mean", ":ratio"),
    ("activation", "rms", ":output"),
)
"""The latest numbers to show: quantity, statistic, and the suffix of its rows' names."""
MOST_TARGETS = 200_000
MOST_DIFF = 200_000
"""The most characters of a diff; `vario origin --diff` prints all that is kept."""

Latest = Mapping[str, Mapping[str, float]]
"""The latest number of each target, by `quantity|statistic`."""


def model(served: Served, values: Mapping[str, Any]) -> bodies.Model:
    """Return modules and parameters in model order."""
    run = served.open(values["run"])
    if not run.ranks:
        return {"modules": [], "memory": _memory(run), "num_parameters": 0}
    structure = run.structure(run.ranks[0])
    latest = _latest(run)
    parameters = [_parameter(found, latest) for found in structure["parameters"]]
    total = sum(found["count"] for found in parameters)
    names = [str(found["name"]) for found in structure["modules"]]
    owned, below = _owned(set(names), parameters), _below(parameters)
    modules: list[bodies.Module] = []
    for name, found in zip(names, structure["modules"], strict=True):
        own, inside = owned.get(name, []), below.get(name, [])
        num_parameters = sum(parameter["count"] for parameter in inside)
        modules.append(
            {
                "name": name,
                "class": str(found.get("class") or ""),
                "depth": 0 if name == ROOT else name.count(".") + 1,
                "num_parameters": num_parameters,
                "own_parameters": sum(parameter["count"] for parameter in own),
                "share": num_parameters / total if total else 0.0,
                "parameters": own,
                "latest": _together(inside) | _of_module(latest, name),
            }
        )
    return {"modules": modules, "memory": _memory(run), "num_parameters": total}


def _parameter(found: Mapping[str, Any], latest: Latest) -> bodies.Parameter:
    name = str(found["name"])
    shape = [int(size) for size in found.get("shape") or ()]
    return {
        "name": name,
        "shape": shape,
        "dtype": found.get("dtype"),
        "trainable": bool(found.get("trainable", True)),
        "shared_with": found.get("shared_with") or [],
        "count": int(np.prod(shape, dtype=np.int64)),
        "latest": {key: values[name] for key, values in latest.items() if name in values and "activation" not in key},
    }


def _below(parameters: list[bodies.Parameter]) -> dict[str, list[bodies.Parameter]]:
    """All parameters of each module, including modules inside it."""
    found: dict[str, list[bodies.Parameter]] = {ROOT: parameters}
    for parameter in parameters:
        module = parameter["name"].rpartition(".")[0]
        while module:
            found.setdefault(module, []).append(parameter)
            module = module.rpartition(".")[0]
    return found


def _owned(names: set[str], parameters: list[bodies.Parameter]) -> dict[str, list[bodies.Parameter]]:
    """The direct parameters of each module."""
    owned: dict[str, list[bodies.Parameter]] = {}
    for found in parameters:
        owner = found["name"].rpartition(".")[0]
        while owner and owner not in names:
            owner = owner.rpartition(".")[0]
        owned.setdefault(owner or ROOT, []).append(found)
    return owned


def _latest(run: Run) -> dict[str, dict[str, float]]:
    """The latest number of each target, by `quantity|statistic`."""
    found: dict[str, dict[str, float]] = {}
    for quantity, statistic, ending in LATEST:
        step = newest_step(run, quantity)
        if step is None:
            continue
        try:
            heat = read_heat(run, quantity, statistic, first=step, last=step, rows=MOST_TARGETS, columns=1)
        except ConfigError:
            continue  # the columns it needs were not recorded
        name = f"{quantity}|{ending.removeprefix(':') if quantity == 'update' else statistic}"
        found[name] = {
            target.removesuffix(ending): float("nan") if bad else float(value)
            for target, value, bad in zip(heat.targets, heat.values[:, -1], heat.bad[:, -1], strict=True)
            if target.endswith(ending)
        }
    return found


def _together(inside: list[bodies.Parameter]) -> dict[str, float]:
    """Aggregate the parameters of a module: norm of all gradients, size of all weights, the largest update."""
    found: dict[str, float] = {}
    norms = [parameter["latest"]["gradient|norm"] for parameter in inside if "gradient|norm" in parameter["latest"]]
    if norms:
        found["gradient|norm"] = float(np.linalg.norm(norms))
    sizes = [
        (parameter["count"], parameter["latest"]["weight|rms"])
        for parameter in inside
        if "weight|rms" in parameter["latest"]
    ]
    if sizes:
        counts, values = np.array(sizes, np.float64).T
        found["weight|rms"] = float(np.sqrt((counts * values**2).sum() / max(1.0, counts.sum())))
    ratios = [parameter["latest"]["update|ratio"] for parameter in inside if "update|ratio" in parameter["latest"]]
    if ratios:
        found["update|ratio"] = float(np.max(ratios))
    return found


def _of_module(latest: Latest, name: str) -> dict[str, float]:
    return {key: values[name] for key, values in latest.items() if key.startswith("activation") and name in values}


def _memory(run: Run) -> bodies.Memory:
    """Peak bytes, predicted before the run and measured during it; None if unknown."""
    measured = None
    rank = run.ranks[0] if run.ranks else 0
    targets = run.targets("scalar", rank=rank) if run.ranks and "scalar" in run.quantities(rank) else []
    peaks = [name for name in targets if name.startswith("device_memory_peak_bytes")]
    for name in peaks or [name for name in targets if name == "process_memory_bytes"]:
        highest = read_curve(run, name, "scalar", "value", rank).high
        if len(highest) and np.isfinite(highest).any():
            measured = max(measured or 0.0, float(np.nanmax(highest)))
    predicted = None
    if "predicted_peak_bytes" in targets:
        last = read_curve(run, "predicted_peak_bytes", "scalar", "value", rank).last
        predicted = float(last[-1]) if len(last) else None
    return {"predicted": predicted, "measured": measured, "of": "device" if peaks else "process"}


def settings(served: Served, values: Mapping[str, Any]) -> bodies.Settings:
    """Return the settings of a run, and problems with watching it."""
    run = served.open(values["run"])
    return {
        "params": run.params,
        "param_sources": run.param_sources,
        "config": run.config,
        "versions": run.versions,
        "command": run.command,
        "path": run.path,
        "host": next((found.host for found in run.rank_states), ""),
        "engine": run.structure(run.ranks[0]).get("engine") if run.ranks else None,
        "parts_off": [*map(_described_part, run.parts_off), *map(_as_part, find_unmerged(run))],
        "not_offered": [{"quantity": found.quantity, "missing": found.missing} for found in run.not_offered],
        "dropped_steps": run.dropped_steps,
        "sessions": sessions_of(run),
        "mesh": run.mesh,
        "ranks": run.rank_states,
        "world_size": run.world_size,
    }


def origin(served: Served, values: Mapping[str, Any]) -> bodies.RunOrigin:
    """Return what a run was started from."""
    run = served.open(values["run"])
    return {"origin": run.origin, "diff": run.code_diff[:MOST_DIFF], "output": run.output}


def _described_part(found: PartOff) -> bodies.PartOff:
    return {"rank": found.rank, "part": found.part, "step": found.step, "error": found.error}


def _as_part(found: Unmerged) -> bodies.PartOff:
    """List what merged values omit like a disabled part."""
    return {"rank": None, "part": f"{found.quantity} of all ranks", "step": None, "error": found.text}


ENDPOINTS = (
    Endpoint(
        "/api/origin",
        "Command, code, environment, packages and output of a run's script.",
        origin,
        (RUN,),
        body=bodies.RunOrigin,
    ),
    Endpoint(
        "/api/model",
        "Modules and parameters in model order, with their latest numbers; memory.",
        model,
        (RUN,),
        body=bodies.Model,
    ),
    Endpoint(
        "/api/settings",
        "Config, versions, ranks, disabled parts of the monitor, what the framework does not offer.",
        settings,
        (RUN,),
        body=bodies.Settings,
        fresh_seconds=FRESH_SECONDS,
    ),
)
