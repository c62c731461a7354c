"""What a rank says of its model: modules and parameters, and what it holds of them."""

from __future__ import annotations

from pathlib import Path

from vario.errors import RunCorrupt
from vario.records import Structure
from vario.run_files import shapes
from vario.run_files.shapes import read_json


def read_structure(rank_folder: Path) -> Structure:
    """Modules and parameters in model order; none where the rank left nothing."""
    path = rank_folder / "structure.json"
    found: Structure = {"modules": [], "parameters": [], **(read_json(path, 2, shapes.STRUCTURE) or {})}
    groups = found.get("groups") or []
    for parameter in found["parameters"]:
        if (group := parameter.pop("replicas", None)) is not None:
            if group >= len(groups):
                raise RunCorrupt(f"{path}: 'replicas' names group {group}, and there are {len(groups)}")
            parameter["replicas"] = groups[group]
    return found
