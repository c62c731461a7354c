"""Sorts the anomalies of all ranks by when they happened: `python -m vario.compat.msprobe.anomaly_processor -d DIR`."""

from __future__ import annotations

import argparse
import ast
import heapq
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vario.compat.msprobe.alarms import read_anomalies
from vario.compat.msprobe.blocks import STAGES
from vario.core.errors import ConfigError, RunNotFound, VarioError

log = logging.getLogger("vario")

RESULT = "anomaly_analyse.json"

Anomaly = dict[str, Any]


def sort_anomalies(folder: Path, topk: int = 8, steps: Sequence[int] = ()) -> dict[str, Anomaly]:
    """Return the first `topk` anomalies under `anomaly_detected`, of some steps or all, earliest first."""
    if not folder.is_dir():
        raise RunNotFound(f"{folder}: no such folder. Expected $MONITOR_OUTPUT_DIR/anomaly_detected.")
    if not any(folder.glob("rank*/anomaly.json")):
        inner = folder / "anomaly_detected"
        hint = f"; did you mean {inner}?" if inner.is_dir() else ""
        raise RunNotFound(f"no rank*/anomaly.json in {folder}{hint}")
    found = ((key, anomaly) for key, anomaly in _all_anomalies(folder) if not steps or anomaly["step"] in steps)
    return dict(heapq.nsmallest(topk, found, key=lambda item: _when(item[1])))


def _all_anomalies(folder: Path) -> Iterator[tuple[str, Anomaly]]:
    for path in sorted(folder.glob("rank*/anomaly.json")):
        for key, anomaly in read_anomalies(path).items():
            if {"step", "micro_step", "vpp_stage", "pp_stage", "call_id", "tag_name"} <= anomaly.keys():
                yield key, anomaly
            else:
                log.warning("%s: '%s' is not an anomaly and is skipped", path, key)


def _when(anomaly: Anomaly) -> tuple[int, ...]:
    """Sort key: forward passes go up the pipeline's stages, everything after goes down."""
    stage = STAGES.get(anomaly["tag_name"].rpartition("/")[2], -1)
    direction = 1 if stage == 0 else -1
    place = direction * anomaly["vpp_stage"], direction * anomaly["pp_stage"]
    return (anomaly["step"], anomaly["micro_step"], stage, *place, anomaly["call_id"])


def _steps(text: str) -> list[int]:
    try:
        steps = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError):
        steps = None
    found = list(steps) if isinstance(steps, (list, tuple)) else [steps]
    if not all(isinstance(step, int) and not isinstance(step, bool) for step in found):
        raise ConfigError(f"--step_list: expected steps such as 2 or 2,3 or '[2, 3]', got '{text}'")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and print the first anomalies and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m vario.compat.msprobe.anomaly_processor", description="Sort anomalies by when they happened."
    )
    parser.add_argument("-d", "--data_path", required=True, type=Path, help="the folder anomaly_detected")
    parser.add_argument("-o", "--out_path", type=Path, help=f"folder for {RESULT} (default: the same folder)")
    parser.add_argument("-k", "--topk", type=int, default=8, help="how many to keep (default: 8)")
    parser.add_argument(
        "-s", "--step_list", "--step", default="[]", help="steps to include: 2 or 2,3 or '[2, 3]' (default: all)"
    )
    given = parser.parse_args(arguments)
    try:
        if given.topk < 1:
            raise ConfigError(f"--topk: expected a whole number of at least 1, got {given.topk}")
        first = sort_anomalies(given.data_path, given.topk, _steps(given.step_list))
        out = given.out_path or given.data_path
        out.mkdir(parents=True, exist_ok=True)
        (out / RESULT).write_text(json.dumps(first, indent=1) + "\n", encoding="utf8")
    except (VarioError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    lines = [str(anomaly.get("message", anomaly["tag_name"])) for anomaly in first.values()]
    number = "1 anomaly is" if len(first) == 1 else f"{len(first)} anomalies are"
    lines.append(f"{number} in {out / RESULT}" if first else "No anomalies.")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
