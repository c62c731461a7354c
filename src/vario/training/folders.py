"""Choose the folder of a new run."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vario.backends.launchers import Job, file_name, this_job
from vario.config import Config
from vario.core.errors import ConfigError, RunTaken
from vario.core.machine_options import machine_options
from vario.core.run_header import RunHeader
from vario.core.text import unknown
from vario.core.urls import is_url
from vario.sinks import SINKS, Sink
from vario.sinks.alerts import Alerts
from vario.sinks.live.live_sink import LiveSink
from vario.sinks.machine import MachineReadings
from vario.sinks.origin.sink import Origin
from vario.sinks.shipping import Shipping
from vario.store.rank_agreement import Proposal, agree

log = logging.getLogger("vario")

WAIT_SECONDS = 1.0
"""How often a process that waits for a run checks whether it is free."""
JOBS = ".jobs"
"""Folder beside the runs where the ranks of one job agree on their run."""


def run_folder(directory: Path, name: str | None, resume: bool, rank: int, world_size: int) -> tuple[Path, bool]:
    """Return the folder of a run, the same on all ranks of a job, and whether it resumes the run there.

    Without a name, the folder is named by the time its first rank started. A job that its launcher restarts resumes its
    run.
    """
    if resume and name is not None:
        return directory / name, True
    job = this_job(os.environ)
    if job.may_start_again or (name is None and world_size > 1):
        return _job_folder(directory, name, rank, world_size, job)
    return (_new_folder(directory) if name is None else directory / name), False


def make_sinks(config: Config) -> dict[str, Sink]:
    """Create the sinks of a config, the live ones last."""
    made = {name: SINKS.get(name, "sinks")() for name in config.sinks}
    if "store" in made and config.origin:
        made["origin"] = Origin(config.origin)
    if "store" in made and is_url(config.directory):
        made["shipping"] = Shipping(str(config.directory))
    keeps_numbers = config.sinks or config.live_sinks
    if keeps_numbers and (reading := machine_options(config.machine)) is not None:
        made["machine"] = MachineReadings(reading)
    for name, options in config.live_sinks.items():
        kind = SINKS.get(name, "live")
        if not issubclass(kind, LiveSink):
            known = [found.name for found in SINKS if issubclass(found.part, LiveSink)]
            raise ConfigError(unknown("live", name, known))
        made[name] = kind(options)
    return made


def tell_live_sinks(sinks: Mapping[str, Sink], alerts: Alerts) -> None:
    """Let live sinks know of incidents."""
    for sink in sinks.values():
        if isinstance(sink, LiveSink):
            alerts.on_incident(sink.incident_came)


def open_sinks(sinks: Mapping[str, Sink], header: RunHeader) -> RunHeader:
    """Open all sinks, the store first, since it may have to use another folder. Return the header they got."""
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
            f"if_taken: '{choice}' works for a single process only, and this job has {header.world_size}. Omit "
            "the name to give every job its own folder."
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
                log.warning("%s Waiting for it to end.", str(error).removesuffix(" Stop it first."))
            time.sleep(WAIT_SECONDS)
        else:
            if nth > 1:
                log.warning("%s already exists; this run is %s", wanted.path, header.path)
            return header


def _job_folder(directory: Path, name: str | None, rank: int, world_size: int, job: Job) -> tuple[Path, bool]:
    made: list[Path] = []

    def propose(known: Proposal) -> dict[str, Any]:
        # A restarted script does the same again: its second run resumes its second run.
        for entry in reversed(known.earlier):
            if entry.content is not None and entry.content.get("nth") == known.nth:
                return {**entry.content, "resume": True, "world_size": world_size}
        run = name
        if run is None:
            made.append(_new_folder(directory))
            run = made[-1].name
        return {"run": run, "resume": False, "nth": known.nth, "world_size": world_size}

    series = job.key if name is None else file_name(f"{job.key}-{name}")
    try:
        # All ranks of one start know the same world size: a different one belongs to another job with the same key.
        entry = agree(
            directory / JOBS,
            series,
            rank,
            propose,
            is_ours=lambda content: content.get("world_size") == world_size,
            may_start_again=job.may_start_again,
        )
    except OSError as error:
        # A failing disk does not stop training. The sink tries again, in a folder that all ranks would choose.
        log.warning("%s: the ranks of this job cannot agree on a folder: %s", directory, error)
        return directory / (name or f"job-{job.key}"), False
    assert entry.content is not None
    chosen = directory / str(entry.content["run"])
    for folder in made:
        if folder != chosen and folder.is_dir():
            folder.rmdir()  # another rank was faster
    return chosen, bool(entry.content["resume"])


def _new_folder(directory: Path) -> Path:
    """Create a folder named by the time. Creating it reserves it: runs that start in the same second differ."""
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
            return folder  # the sink logs the error and tries again
        return folder
