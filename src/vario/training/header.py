"""What a run is told of itself before its first step."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from vario.backends.base import Watched
from vario.config import Config
from vario.core.package import versions
from vario.sinks import RunHeader


def run_header(path: Path, resume: bool, config: Config, watched: Watched, group: str | None = None) -> RunHeader:
    """The header of one rank's part of a run in this folder."""
    return RunHeader(
        path=path,
        rank=watched.rank,
        world_size=watched.world_size,
        config=config.to_json(),
        versions={**versions(), **watched.versions},
        command=" ".join(sys.argv),
        structure=watched.targets.structure(),
        mesh={name: size for name, (size, _) in watched.mesh.items()},
        coordinates={name: here for name, (_, here) in watched.mesh.items()},
        first_step=config.first_step,
        resume=resume,
        started=time.time(),
        group=group,
    )
