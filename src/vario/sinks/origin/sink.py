"""The sink that writes what a run was started from."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from vario.config import ORIGIN_PARTS
from vario.core.masking import masked, masked_arguments, secret_values
from vario.core.records import StepRecord
from vario.core.run_format import DIFF, ORIGIN, OUTPUT
from vario.core.run_header import RunHeader
from vario.core.text import reason
from vario.sinks import PartsOff
from vario.sinks.origin.code import read_code, script_folder
from vario.sinks.origin.printed import Printed
from vario.sinks.origin.surroundings import read_packages, read_seeds, read_variables
from vario.store.folder import leading_rank, write_json, write_texts

log = logging.getLogger("vario")

OUTPUT_SECONDS = 10.0
"""How often what was printed is written, if there is more of it."""
CLOSE_SECONDS = 5.0
"""How long the end of a run waits for git."""


class Origin:
    """Writes `origin.json`, `origin.diff` and `output.txt` into the folder of the leading rank.

    Reading starts after the first step, on a thread of its own.
    """

    name: ClassVar[str] = "origin"
    first_step = 0

    def __init__(self, parts: Sequence[str] = ORIGIN_PARTS) -> None:
        self._parts = frozenset(parts)
        self._reading: threading.Thread | None = None
        self._printed: Printed | None = None
        self._num_written = 0
        self._written_at = time.monotonic()

    def open(self, header: RunHeader) -> None:
        """Begin to listen to what is printed, on the leading rank."""
        self.first_step = header.first_step or 0
        self._folder: Path | None = None
        if header.rank == leading_rank(header) and self._parts:
            self._folder = header.path / f"rank{header.rank}"
            self._secrets = secret_values()
            if "output" in self._parts:
                self._printed = Printed()
                self._printed.begin()

    def write(self, record: StepRecord) -> None:
        """Start reading at the first step; later write what was printed, now and then."""
        if self._folder is None:
            return
        if self._reading is None:
            self._reading = threading.Thread(target=self._read, name="vario-origin", daemon=True)
            self._reading.start()
        if time.monotonic() - self._written_at >= OUTPUT_SECONDS:
            self._write_output()

    def note(self, parts_off: PartsOff, num_refused: int) -> None:
        """Do nothing: what failed is in the run."""

    def close(self, state: str, error: str | None) -> None:
        """Stop listening and write the rest."""
        if self._printed is not None:
            self._printed.end()
            self._write_output()
        if self._reading is not None:
            self._reading.join(CLOSE_SECONDS)

    def _write_output(self) -> None:
        self._written_at = time.monotonic()
        if self._printed is None or self._folder is None or self._printed.num_taken == self._num_written:
            return
        self._num_written = self._printed.num_taken
        with contextlib.suppress(OSError):  # the store names a folder that cannot be written
            write_texts(self._folder / OUTPUT, [masked(self._printed.text, self._secrets)])

    def _read(self) -> None:
        assert self._folder is not None
        try:
            diff = ""
            found: dict[str, Any] = {
                "command": masked_arguments(sys.argv),
                "executable": sys.executable,
                "directory": os.getcwd(),
            }
            if "code" in self._parts:
                found["code"], diff = read_code(script_folder())
            if "environment" in self._parts:
                found["environment"], found["seeds"] = read_variables(), read_seeds()
            if "packages" in self._parts:
                found["packages"] = read_packages()
            write_json(self._folder / ORIGIN, found)
            if diff:
                write_texts(self._folder / DIFF, [masked(diff, self._secrets)])
        except OSError as error:
            log.debug("%s: %s", self._folder, error)  # the store names a folder that cannot be written
        except Exception as error:  # noqa: BLE001 - the failure policy: a run without it is a run
            log.warning("what this run was started from could not be read: %s", reason(error))
