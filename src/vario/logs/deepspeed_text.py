"""DeepSpeed's text log: `step=10, skipped=0, lr=[...], mom=[...]` and throughput lines. It contains no loss."""

from __future__ import annotations

import re
from pathlib import Path

from vario.logs import log_format
from vario.logs.history import RATE, History, pace_between
from vario.logs.rows import NOT_LOGGED, Rows, number
from vario.logs.text_files import make_history, read_text, unix_time

STAMP = re.compile(r"^\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)\]")
RANK = re.compile(r"\[Rank (\d+)\]")
STEP = re.compile(r"\bstep=(\d+), skipped=(\d+), lr=\[([^\]]*)\]")
SPEED = re.compile(
    r"\bglobal_step=(\d+), RunningAvgSamplesPerSec=([^,]+), CurrSamplesPerSec=([^,]+)"
    r"(?:, MemAllocated=([\d.]+)GB, MaxMemAllocated=([\d.]+)GB)?"
)


@log_format(
    "deepspeed",
    ("*.log", "*.out", "*.txt"),
    order=60,
    looks_right=lambda text: STEP.search(text) is not None or SPEED.search(text) is not None,
)
def deepspeed(path: Path) -> History:
    """Text log of DeepSpeed."""
    rows = Rows()
    text = read_text(path)
    told_by = min(RANK.findall(text), key=int, default="")
    for line in text.splitlines():
        if (rank := RANK.search(line)) and rank[1] != told_by:
            continue  # ranks print the same at slightly different times: steps would seem to go back
        stamp = STAMP.match(line)
        time = unix_time(stamp[1]) if stamp else NOT_LOGGED
        if match := STEP.search(line):
            rates = [number(word) for word in match[3].split(",")]
            rows.add(int(match[1]), {RATE: rates[0], "skipped_steps": match[2]}, time=time)
        if match := SPEED.search(line):
            values = {"samples_per_second": match[3], "memory_allocated_gb": match[4], "memory_peak_gb": match[5]}
            rows.add(int(match[1]), values, time=time)
    curves, notes = rows.curves()
    clock = max(curves.values(), key=len, default=None)
    pace = pace_between(clock.steps, clock.times, "line_times") if clock is not None else None
    return make_history(path, "deepspeed", curves, notes, pace=pace)
