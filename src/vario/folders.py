"""Where a new run goes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from vario.errors import ConfigError


def run_folder(directory: Path, name: str | None, world_size: int) -> Path:
    """The folder of a run: the given name, or the time it started, the same on all ranks of one job."""
    if name is not None:
        return directory / name
    if world_size > 1:
        return directory / _job_name()
    stem, nth = _stem(time.time()), 1
    while True:
        folder = directory / (stem if nth == 1 else f"{stem}-{nth}")
        try:
            # Making it is how it is taken: runs that start in the same second get folders of their own.
            os.makedirs(directory, exist_ok=True)
            folder.mkdir()
        except FileExistsError:
            nth += 1
            continue
        except OSError:
            return folder  # the sink says what is wrong and tries again
        return folder


def _stem(started: float) -> str:
    return time.strftime("%Y%m%d-%H%M%S", time.localtime(started))


def _job_name() -> str:
    """What the ranks of one job have in common without talking."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    suffix = "" if restarts == "0" else f"-restart{restarts}"
    is_one_node = os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE", "")
    if is_one_node:
        return _stem(_parent_start()) + suffix
    if job == "none":
        raise ConfigError(
            "name: a job on several nodes needs one, so that all ranks write into one folder. Add name = '...', "
            "or give torchrun an --rdzv-id."
        )
    return f"job-{job}{suffix}"


def _parent_start() -> float:
    """When the launcher started, in Unix seconds, as the kernel keeps it."""
    try:
        # Fields after the command's closing parenthesis; the 20th of them is the start in ticks since boot.
        ticks = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19])
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime"))
        return int(boot.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, ValueError, IndexError):
        return time.time()
