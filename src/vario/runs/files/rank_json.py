"""A rank's model and collectives: `structure.json` and `collectives.json`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from vario.core.errors import RunCorrupt
from vario.core.records import Collective, Structure
from vario.core.run_files import shapes
from vario.core.run_files.shapes import read_json
from vario.core.run_format import COLLECTIVES, STRUCTURE


def read_structure(rank_folder: Path) -> Structure:
    """Read modules and parameters in model order; none if the rank wrote nothing."""
    path = rank_folder / STRUCTURE
    found: Structure = {"modules": [], "parameters": [], **(read_json(path, 2, shapes.STRUCTURE) or {})}
    groups = found.get("groups") or []
    for number, entry in enumerate([*found["modules"], *found["parameters"]]):
        if "name" not in entry:
            kind = "module" if number < len(found["modules"]) else "parameter"
            raise RunCorrupt(f"{path}: a {kind} has no 'name'. {shapes.WITHOUT}")
    for parameter in found["parameters"]:
        if (group := parameter.pop("replicas", None)) is not None:
            if group >= len(groups):
                raise RunCorrupt(f"{path}: 'replicas' names group {group}, but there are only {len(groups)}")
            parameter["replicas"] = groups[group]
    return found


def read_collectives(rank_folder: Path) -> list[Collective]:
    """Read a rank's collectives, in the order of their first call; none if none were watched."""
    path = rank_folder / COLLECTIVES
    known = [item.name for item in dataclasses.fields(Collective)]
    found = []
    for content in (read_json(path, 2, shapes.COLLECTIVES) or {}).get("collectives") or []:
        try:
            values = {name: content[name] for name in known}
        except (KeyError, TypeError) as error:
            raise RunCorrupt(f"{path}: an entry has no {error}") from error
        found.append(Collective(**{**values, "ranks": tuple(values["ranks"]), "stack": tuple(values["stack"])}))
    return found
