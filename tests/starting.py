"""Starting programs as users do: in a process of its own, or, faster, as a copy of one that has imported torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

LIMIT_SECONDS = 600
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONHASHSEED": "0"}

Start = Callable[[Sequence[str], Path], int]
"""Runs `python WORDS` in a folder, leaves stdout.txt and stderr.txt there, and answers with the exit code."""


def start_afresh(words: Sequence[str], folder: Path) -> int:
    """A process of its own, as users start it."""
    with open(folder / "stdout.txt", "w") as out, open(folder / "stderr.txt", "w") as err:
        return subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env={**os.environ, **ENVIRONMENT},
            stdout=out,
            stderr=err,
            timeout=LIMIT_SECONDS,
        ).returncode


class Starter:
    """Starts programs as copies of one process that has imported torch already; see `warm_process.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "warm_process.py")],
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, words: Sequence[str], folder: Path) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"words": list(words), "folder": str(folder)}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
