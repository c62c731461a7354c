"""Where a new run goes."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError, RunTaken
from vario.sinks import RunHeader, Sink
from vario.sinks.agreement import Proposal, agree, is_started_again

log = logging.getLogger("vario")

WAIT_SECONDS = 1.0
"""How often a process that waits for a run looks whether it is free."""
JOBS = ".jobs"
"""The folder, beside the runs, in which ranks of one job find out which run is theirs."""


def run_folder(directory: Path, name: str | None, resume: bool, rank: int, world_size: int) -> tuple[Path, bool]:
    """The folder of a run, the same on all ranks of a job, and whether it goes on with what is there.

    That is the given name, or the time the first of its ranks came. A job that its launcher starts again goes on.
    """
    if resume and name is not None:
        return directory / name, True
    if is_started_again() or (name is None and world_size > 1):
        return _job_folder(directory, name, rank, world_size)
    return (_new_folder(directory) if name is None else directory / name), False


def open_sinks(sinks: Mapping[str, Sink], header: RunHeader) -> RunHeader:
    """Open all sinks, the store first: where its folder is taken it may get another. Returns the header they got."""
    if "store" in sinks:
        header = _take_folder(sinks["store"], header)
    for name, sink in sinks.items():
        if name != "store":
            sink.open(header)
    return header


def _take_folder(store: Sink, header: RunHeader) -> RunHeader:
    wanted, choice = header, header.config.get("if_taken")
    if choice in ("new", "wait") and header.world_size > 1:
        raise ConfigError(
            f"if_taken: '{choice}' works for a single process only, and this job has {header.world_size}. Leave out "
            "the name: every job then gets its own folder."
        )
    nth, has_told = 1, False
    while True:
        try:
            store.open(header)
        except RunTaken as error:
            if choice == "new":
                nth += 1
                header = replace(wanted, path=wanted.path.with_name(f"{wanted.path.name}-{nth}"), resume=False)
                continue
            if choice != "wait":
                raise
            if not has_told:
                has_told = True
                log.warning("%s Waiting until it has ended.", str(error).removesuffix(" Stop it first."))
            time.sleep(WAIT_SECONDS)
        else:
            if nth > 1:
                log.warning("%s is taken; this run is %s", wanted.path, header.path)
            return header


def _job_folder(directory: Path, name: str | None, rank: int, world_size: int) -> tuple[Path, bool]:
    key = job_key()
    made: list[Path] = []

    def propose(known: Proposal) -> dict[str, Any]:
        # A script that is started again does the same again: its second run goes on with its second run.
        for entry in reversed(known.earlier):
            if entry.content is not None and entry.content.get("nth") == known.nth:
                return {**entry.content, "resume": True, "world_size": world_size}
        run = name
        if run is None:
            made.append(_new_folder(directory))
            run = made[-1].name
        return {"run": run, "resume": False, "nth": known.nth, "world_size": world_size}

    series = key if name is None else _file_name(f"{key}-{name}")
    try:
        # All ranks of one start know the same world size: another one is told by a job with the same key elsewhere.
        entry = agree(
            directory / JOBS,
            series,
            rank,
            propose,
            is_ours=lambda content: content.get("world_size") == world_size,
        )
    except OSError as error:
        # A disk that fails does not stop training. The sink tries again, in a folder that all ranks would choose.
        log.warning("%s: the ranks of this job cannot agree on a folder: %s", directory, error)
        return directory / (name or f"job-{key}"), False
    assert entry.content is not None
    chosen = directory / str(entry.content["run"])
    for folder in made:
        if folder != chosen and folder.is_dir():
            folder.rmdir()  # another rank was faster
    return chosen, bool(entry.content["resume"])


def _new_folder(directory: Path) -> Path:
    """A folder named by the time, taken by making it: runs that start in the same second get folders of their own."""
    stem, nth = time.strftime("%Y%m%d-%H%M%S"), 1
    while True:
        folder = directory / (stem if nth == 1 else f"{stem}-{nth}")
        try:
            os.makedirs(directory, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            nth += 1
            continue
        except OSError:
            return folder  # the sink says what is wrong and tries again
        return folder


def job_key() -> str:
    """What the ranks of one job have in common, and jobs that run beside it have not; fit for a file name."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    if job not in ("", "none"):
        return _file_name(job)
    address, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if slurm := os.environ.get("SLURM_JOB_ID"):
        # The port, because one Slurm step may hold several trainings. The address has several spellings.
        return _file_name("-".join(filter(None, ["slurm", slurm, os.environ.get("SLURM_STEP_ID"), port])))
    if port:
        if address in ("", "localhost", "::1") or address.startswith("127."):
            address = socket.gethostname()  # many hosts may have such a job at the same time
        return _file_name(f"{address}-{port}")
    # One node, and nothing set: the processes have their parent in common.
    return _file_name(f"{socket.gethostname()}-{os.getppid()}")


def _file_name(text: str) -> str:
    plain = re.sub(r"[^\w.-]", "_", text)[:120]
    return plain if plain == text else f"{plain}-{zlib.crc32(text.encode()):08x}"
