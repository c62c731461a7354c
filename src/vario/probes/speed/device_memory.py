"""Memory of the process and of its devices."""

from __future__ import annotations

import os
from typing import ClassVar

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.probes import Needs, Recorder

_STATM = "/proc/self/statm"


class DeviceMemory:
    """Per device: allocated memory, its peak, and reserved memory."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (offered.DeviceMemory,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Log memory at the end of each step."""
        memory = needed(backend, offered.DeviceMemory)

        def step_ended(seconds: float) -> None:
            recorder.log(**memory.device_scalars())

        recorder.on_step_ended(recorder.guarded("device_memory", step_ended))


class ProcessMemory:
    """`process_memory_bytes`: the host memory of the training process."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Log memory at the end of each step, if the system reports it."""
        if not os.path.exists(_STATM):
            return
        page_bytes = os.sysconf("SC_PAGE_SIZE")

        def step_ended(seconds: float) -> None:
            recorder.log(process_memory_bytes=int(_read(_STATM).split()[1]) * page_bytes)

        recorder.on_step_ended(recorder.guarded("device_memory", step_ended))


def _read(path: str) -> bytes:
    """Read a short file, in a tenth of the time of a Python file object."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 256)
    finally:
        os.close(descriptor)
