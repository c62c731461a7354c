"""Starts servers as users do, each in its own process, and measures them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

PATIENCE_SECONDS = 600.0
PAUSE_SECONDS = 0.05
MEGABYTE = 1e6


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    question: str
    value: float
    unit: str = "ms"
    bar: float | None = None
    """The limit."""
    note: str = ""

    def text(self) -> str:
        """As a row."""
        bar = "" if self.bar is None else f"{self.bar:,.0f} {'met' if self.value < self.bar else 'MISSED'}"
        return f"| {self.question} | {self.value:,.0f} {self.unit} | {bar} | {self.note} |"


def print_lines(title: str, lines: list[Line]) -> None:
    """A table under a title."""
    print(f"\n{title}\n\n| what was timed | | bar | |\n| --- | ---: | ---: | --- |")
    print("\n".join(line.text() for line in lines), flush=True)


@dataclass(frozen=True)
class Server:
    """A server that listens."""

    url: str
    started: float
    """Before its process was started, by the clock of `time.perf_counter`."""
    up_ms: float
    """From there until it had said where it listens and answered."""
    process: subprocess.Popen[str]

    def get(self, page: str, **query: Any) -> bytes:
        """The body of an answer."""
        text = urllib.parse.urlencode(query, doseq=True)
        with urllib.request.urlopen(f"{self.url}{page}?{text}", timeout=PATIENCE_SECONDS) as answer:
            return bytes(answer.read())

    def json(self, page: str, **query: Any) -> Any:
        """An answer in JSON."""
        return json.loads(self.get(page, **query))

    def since_start_ms(self) -> float:
        """Milliseconds since its process was started."""
        return (time.perf_counter() - self.started) * 1e3

    def peak_megabytes(self) -> float:
        """Return its peak resident memory; for several processes, the sum of their peaks."""
        parent = psutil.Process(self.process.pid)
        return sum(_peak_bytes(each.pid) for each in (parent, *parent.children(recursive=True))) / MEGABYTE


def _peak_bytes(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0


@contextmanager
def vario_server(folder: Path) -> Iterator[Server]:
    """A fresh `vario serve` over a folder; it answers when it comes."""
    command = [sys.executable, "-m", "vario", "serve", str(folder), "--port=0", "--json", "--no-token", "--no-browser"]
    with _started(command, lambda line: str(json.loads(line)["url"]), "healthz") as server:
        yield server


@contextmanager
def tensorboard_server(folder: Path) -> Iterator[Server]:
    """A fresh `tensorboard --logdir`, with the settings it comes with."""
    program = Path(sys.executable).with_name("tensorboard")
    command = [str(program), "--logdir", str(folder), "--port=0", "--host=127.0.0.1"]
    with _started(command, _tensorboard_url, "data/environment") as server:
        yield server


def _tensorboard_url(line: str) -> str | None:
    match = re.search(r" at (http://\S+)", line)
    return match[1] if match else None


@contextmanager
def _started(command: list[str], url_of: Callable[[str], str | None], first_page: str) -> Iterator[Server]:
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            url = next((found for line in process.stdout if (found := url_of(line)) is not None), None)
            if url is None:
                raise SystemExit(f"{' '.join(command)}: ended before it listened")
            with urllib.request.urlopen(url + first_page, timeout=PATIENCE_SECONDS) as answer:
                answer.read()
            yield Server(url, started, (time.perf_counter() - started) * 1e3, process)
        finally:
            process.terminate()


def timed(ask: Callable[[], Any]) -> tuple[Any, float]:
    """What came, and after how many milliseconds."""
    start = time.perf_counter()
    found = ask()
    return found, (time.perf_counter() - start) * 1e3


def wait_for(is_so: Callable[[], bool]) -> None:
    """Ask until it is so; with pauses, which leave the processor to who works on the answer."""
    end = time.perf_counter() + PATIENCE_SECONDS
    while not is_so():
        if time.perf_counter() > end:
            raise SystemExit(f"still not so after {PATIENCE_SECONDS:.0f} s")
        time.sleep(PAUSE_SECONDS)
