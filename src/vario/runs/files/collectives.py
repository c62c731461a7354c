"""Which collectives a rank took part in: what all calls of one target have in common."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from vario.errors import RunCorrupt
from vario.records import Collective
from vario.run_files import shapes
from vario.run_files.shapes import read_json


def read_collectives(rank_folder: Path) -> list[Collective]:
    """The collectives in a rank's folder, in the order they were first called; none where none were watched."""
    path = rank_folder / "collectives.json"
    known = [item.name for item in dataclasses.fields(Collective)]
    found = []
    for content in (read_json(path, 2, shapes.COLLECTIVES) or {}).get("collectives") or []:
        try:
            values = {name: content[name] for name in known}
        except (KeyError, TypeError) as error:
            raise RunCorrupt(f"{path}: an entry has no {error}") from error
        found.append(Collective(**{**values, "ranks": tuple(values["ranks"]), "stack": tuple(values["stack"])}))
    return found
