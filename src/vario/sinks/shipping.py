"""Has a run copied to where it should lie while it is written, by a process of its own: `directory="s3://..."`."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import time
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import ClassVar

from vario.core.masking import masked
from vario.core.records import StepRecord
from vario.core.run_header import RunHeader
from vario.machine.place import reads_host, spans_hosts
from vario.remote.places.opening import check_packages
from vario.remote.shipping.starting import start_shipper
from vario.remote.shipping.state_file import ShippingState, read_state, state_path
from vario.sinks import PartsOff

log = logging.getLogger("vario")

RATE = "VARIO_SHIP_RATE"
"""How much to send per second, such as `20MB`."""
WAIT = "VARIO_SHIP_WAIT"
"""How many seconds the end of the script waits for the rest to arrive."""
WAIT_SECONDS = 60.0
LOOK_SECONDS = 5.0
"""How often to see how the other process is doing."""
LEAST_SECONDS_BETWEEN = 30.0
"""A shipper that was killed is started again, but not all the time."""


class Shipping:
    """Starts one shipper for each host of a job, and says once when it cannot reach the target."""

    name: ClassVar[str] = "shipping"
    first_step = 0

    def __init__(self, url: str | None = None) -> None:
        """Without a URL nothing is shipped."""
        self._url = url
        self._run: Path | None = None
        self._process: Popen[bytes] | None = None
        self._started = self._looked = float("-inf")
        self._is_unreachable = False

    def open(self, header: RunHeader) -> None:
        """Start shipping."""
        self.first_step = header.first_step or 0
        ranks = header.config.get("ranks") or ()
        if self._url is None or not reads_host(header.rank, header.world_size, ranks, os.environ):
            return
        check_packages(self._url)
        if header.rank == 0 and header.config.get("name") is None and spans_hosts(header.world_size, os.environ):
            log.warning("directory: hosts that share no `staging` need a `name` for their run: see docs/remote.md")
        self._run = header.path.absolute()
        state_path(self._run).unlink(missing_ok=True)  # of an earlier session
        self._start()
        atexit.register(self._wait)

    def write(self, record: StepRecord) -> None:
        """See how the shipper is doing, now and then."""
        if self._run is not None and time.monotonic() - self._looked >= LOOK_SECONDS:
            self._look()

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Do nothing: the run has it."""

    def close(self, state: str, error: str | None) -> None:
        """Let the shipper finish: the script goes on meanwhile."""
        if self._run is not None:
            self._look()

    def _start(self) -> None:
        assert self._run is not None
        assert self._url is not None
        self._started = time.monotonic()
        self._process = start_shipper(self._run, self._url, os.environ.get(RATE, ""))

    def _look(self) -> None:
        assert self._run is not None
        self._looked = now = time.monotonic()
        # One that ends by itself has shipped everything, or leaves the run to another one.
        told = self._told()
        was_killed = self._process is not None and (self._process.poll() or 0) < 0
        if was_killed and now - self._started > LEAST_SECONDS_BETWEEN:
            self._start()
        is_unreachable = told is not None and told.is_stuck
        if is_unreachable and not self._is_unreachable:
            error = (None if told is None else told.error) or f"{masked(self._url or '')}: cannot be reached"
            log.warning("%s. The run is complete in %s and copied later; training continues.", error, self._run)
        elif self._is_unreachable and not is_unreachable:
            log.warning("%s can be reached again", masked(self._url or ""))
        self._is_unreachable = is_unreachable

    def _told(self) -> ShippingState | None:
        return None if self._run is None else read_state(self._run)

    def _wait(self) -> None:
        """Give the shipper time to finish before the script ends: a container ends with its script."""
        process, self._process = self._process, None
        if process is None:
            return
        limit = time.monotonic() + float(os.environ.get(WAIT) or WAIT_SECONDS)
        while process.poll() is None:
            told = self._told()
            if time.monotonic() >= limit or (told is not None and told.is_stuck):
                log.warning("%s is not completely copied yet. Finish it with: %s", self._run, self._command())
                process.returncode = 0  # it goes on without us: nobody waits for it
                return
            with contextlib.suppress(TimeoutExpired):
                process.wait(0.2)

    def _command(self) -> str:
        return f"vario ship {self._run} {masked(self._url or '')}"
