"""The header of a run: what is known before its first step."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from vario.backends.launchers import this_job
from vario.backends.protocols.backend import Backend
from vario.backends.protocols.capabilities import Replicas
from vario.config import Config
from vario.core.masking import masked_arguments
from vario.core.package import versions
from vario.core.records import Mesh
from vario.core.run_header import NotOffered, RunHeader, RunParams


def run_header(
    path: Path,
    resume: bool,
    config: Config,
    backend: Backend,
    group: str | None,
    not_offered: NotOffered,
    params: RunParams,
) -> RunHeader:
    """Return the header of one rank's part of a run in this folder."""
    job = this_job(os.environ)
    replicas = backend.offer(Replicas)
    mesh: Mesh = {} if replicas is None else replicas.mesh
    return RunHeader(
        path=path,
        rank=backend.rank,
        world_size=backend.world_size,
        config={key: value for key, value in config.to_json().items() if key != "params"},
        versions={**versions(), **backend.versions},
        command=" ".join(masked_arguments(sys.argv)),
        structure=backend.structure(),
        mesh={name: size for name, (size, _) in mesh.items()},
        coordinates={name: here for name, (_, here) in mesh.items()},
        first_step=config.first_step,
        resume=resume,
        started=time.time(),
        group=group,
        job=job.mark,
        may_start_again=job.may_start_again,
        not_offered=not_offered if backend.has_model else [],
        params=params,
    )
