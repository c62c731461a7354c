"""The same numbers in vario and in TensorBoard: time from start until they are shown, and memory.

vario keeps six statistics of a target in one row, TensorBoard a tag for each: 2,000 targets are 12,000 tags. Its event
file has one event for each number, as TensorBoard's own writer makes them. Both servers start with the settings they
come with; both are asked for the same series, and what they answer is compared.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dashboard_server import Line, Server, tensorboard_server, timed, vario_server, wait_for
from long_run import RUNS, Rows, Size, long_run
from vario.core.event_file import EventFile
from vario.statistics import STATISTICS

NAMES = ("norm", "mean", "rms", "std", "min", "max")
"""What TensorBoard has a tag for."""
STARTED = 1.75e9


def tag(target: str, statistic: str) -> str:
    """As TensorBoard's pages group them."""
    return f"{statistic}/{target}"


def event_folder(size: Size) -> Path:
    """The event file of the run of this size, written if it is not there yet."""
    folder = RUNS / f"tensorboard-{size.num_targets}x{size.num_steps}"
    if (folder / "whole").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    rows, events = Rows(size), EventFile(folder / "run", STARTED)
    tags = [tag(target, name) for name in NAMES for target in size.names]
    for step in range(size.num_steps):
        table = rows.table(step)
        values = np.concatenate([STATISTICS.get(name)(table) for name in NAMES])
        events.add_scalars(tags, values, step, STARTED + 0.25 * step)
    events.close()
    (folder / "whole").touch()
    return folder


def time_beside(size: Size, num_processes: int) -> list[Line]:
    """Both, one after the other."""
    target = size.names[size.num_targets // 2]
    ours, own = _of_vario(long_run(size, num_processes), target)
    theirs, other = _of_tensorboard(event_folder(size), size, target)
    if not np.allclose(own, other, rtol=1e-6, equal_nan=True):
        raise SystemExit(f"{target}: the two do not show the same numbers")
    (ready, memory), (their_ready, their_memory) = ours[-2:], theirs[-2:]
    return [
        *ours,
        *theirs,
        Line("TensorBoard / vario: start to series", their_ready.value / ready.value, "x"),
        Line("TensorBoard / vario: memory", their_memory.value / memory.value, "x"),
    ]


def _of_vario(path: Path, target: str) -> tuple[list[Line], npt.NDArray[np.float64]]:
    with vario_server(path) as server:
        server.json("api/runs")
        listed = server.since_start_ms()
        server.get("api/heat", run=".", quantity="gradient", statistic="norm")
        heat = server.since_start_ms()
        query = {"run": ".", "series": f"gradient|{target}|norm"}
        answer, series = timed(lambda: server.json("api/series", **query))
        whole = server.since_start_ms()
        lines = [
            Line("vario: start to first answer", server.up_ms),
            Line("vario: start to list of runs", listed),
            Line("vario: start to heat map of all targets", heat),
            Line("vario: a series, once that was there", series),
            Line("vario: start to every step of a series", whole),
            Line("vario: highest memory", server.peak_megabytes(), "MB"),
        ]
    (curve,) = answer["curves"]
    return lines, np.array(curve["last"], float)


def _of_tensorboard(folder: Path, size: Size, target: str) -> tuple[list[Line], npt.NDArray[np.float64]]:
    with tensorboard_server(folder) as server:
        num_tags = len(NAMES) * size.num_targets
        wait_for(lambda: len(server.json("data/plugin/scalars/tags").get("run", ())) == num_tags)
        listed = server.since_start_ms()
        # Tags are listed when their first number is there: the others follow.
        wait_for(lambda: len(_points(server, target)) == size.num_steps)
        whole = server.since_start_ms()
        points, series = timed(lambda: _points(server, target))
        lines = [
            Line("TensorBoard: start to first answer", server.up_ms),
            Line(f"TensorBoard: start to all {num_tags:,} tags listed", listed),
            Line("TensorBoard: a series, once all was there", series),
            Line("TensorBoard: start to every step of a series", whole),
            Line("TensorBoard: highest memory, all its processes", server.peak_megabytes(), "MB"),
        ]
    return lines, np.array([value for _, _, value in points], float)


def _points(server: Server, target: str) -> list[Any]:
    found: list[Any] = server.json("data/plugin/scalars/scalars", run="run", tag=tag(target, "norm"))
    return found
