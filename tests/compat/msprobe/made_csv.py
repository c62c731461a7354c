"""CSV files as msprobe writes them, with known numbers, and readers of what is made from them."""

import csv
import os
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from contextlib import closing
from datetime import datetime

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TAG = "Dec03_21-34-40"
OPS = ("norm", "min", "max", "mean", "zeros", "nans")
NAMES = ("embedding.weight", "layers.0.weight", "layers.0.bias", "head.weight")


def values(kind, name, step, rank=0, ops=OPS, micro=0):
    """The numbers of one row: different for every row, the same every time."""
    seed = zlib.crc32(f"{kind} {name} {step} {rank} {micro}".encode())
    drawn = np.random.default_rng(seed).normal(size=len(ops)).round(6).tolist()
    return [0 if op == "nans" else value for op, value in zip(ops, drawn, strict=True)]


def folder(base, rank=0, tag=TAG, unique="0a1b2c3d", changed=None):
    """A folder of one rank, last changed at that moment."""
    path = base / f"{tag}-rank{rank}-{unique}"
    path.mkdir(parents=True, exist_ok=True)
    if changed:
        os.utime(path, (datetime(*changed).timestamp(),) * 2)
    return path


def write(path, kind, steps, names=NAMES, rank=0, ops=OPS, micros=None, per_file=1, forms=True, stage=0, shift=0.0):
    """Append the rows of some steps to the files they belong to."""
    micro_column = [] if micros is None else ["micro_step"]
    header = ["vpp_stage", "name", "step", *micro_column, *ops, *(["shape", "dtype"] if forms else [])]
    for step in steps:
        first = step // per_file * per_file
        file = path / f"{kind}_{first}-{first + per_file - 1}.csv"
        is_new = not file.exists()
        with file.open("a", newline="") as opened:
            writer = csv.writer(opened, lineterminator="\n")
            if is_new:
                writer.writerow(header)
            for micro in micros or [0]:
                for name in names:
                    numbers = [value + shift for value in values(kind, name, step, rank, ops, micro)]
                    form = ["[4, 8]", "torch.float32"] if forms else []
                    writer.writerow([stage, name, step, *([micro] if micros else []), *numbers, *form])


def interrupted(code, has_begun):
    """What a Python process writes to stderr when Ctrl-C comes, once it has begun."""
    # A job in the background of a shell is born deaf to Ctrl-C, and its children would be.
    hearing = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-c", hearing + code]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while not has_begun():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        # One that comes just before a call that blocks is heard after that call, which is never: people press again.
        for _ in range(10):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes at once
            try:
                return process.communicate(timeout=20)[1]
            except subprocess.TimeoutExpired:
                continue
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError("Ctrl-C was not heard: " + process.communicate()[1])


def scalars(folder):
    """Every tag of the event files in one folder, with its steps and values."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def expected(kind, steps, names=NAMES, rank=0, ops=OPS, micros=None, shift=0.0):
    """What those event files have to hold."""
    found = {}
    for name in names:
        for micro in micros or [0]:
            for position, op in enumerate(ops):
                tag = f"vp0:{name}{'' if micros is None else f':micro{micro}'}/{op}"
                rows = [(step, values(kind, name, step, rank, ops, micro)[position] + shift) for step in steps]
                found[tag] = [(step, float(np.float32(value))) for step, value in rows]
    return found


def database(path):
    """A database as `{(kind, rank, step, name, stage, micro): {statistic: value}}`."""
    rows = {}
    with closing(sqlite3.connect(path)) as connection:
        targets = {row[0]: row[1:] for row in connection.execute("select * from monitoring_targets")}
        kinds = dict(connection.execute("select * from monitoring_metrics").fetchall())
        for (table,) in tables(connection):
            cursor = connection.execute(f"select * from {table}")
            columns = [column[0] for column in cursor.description]
            kind = kinds[int(table.split("_")[1])]
            for row in cursor:
                rank, step, target = row[:3]
                rows[(kind, rank, step, *targets[target])] = dict(zip(columns[3:], row[3:], strict=True))
    return rows


def tables(connection):
    """Names of the tables that hold the rows."""
    query = "select name from sqlite_master where type = 'table' and name like 'metric\\__%' escape '\\'"
    return [row for row in connection.execute(query) if row[0] != "metric_stats"]
