"""How fast a CUDA device reads tensors for Summaries: estimated from its memory, then measured now and then."""

from __future__ import annotations

import torch

_LAUNCH_SECONDS = 3e-6
"""Time of a launch, however small the tensor is."""
_LEAST_BYTES = 1 << 24
"""A list has to be this large for its time to show the speed."""
_SAMPLE_EVERY = 32
_USUAL_SPEED = 1e12
_REACHED = 0.75
"""The share of the memory bandwidth that a reduction reaches."""

Clock = tuple[int, torch.cuda.Event, torch.cuda.Event]


class ReadingSpeed:
    """Estimates how long the device takes for a reduction."""

    def __init__(self, device: torch.device) -> None:
        properties = torch.cuda.get_device_properties(device)
        clock, width = getattr(properties, "memory_clock_rate", 0), getattr(properties, "memory_bus_width", 0)
        self._bytes_per_second = 2e3 * clock * width / 8 * _REACHED or _USUAL_SPEED
        self._num_lists = 0
        self._running: Clock | None = None

    def seconds(self, num_bytes: int) -> float:
        """Return the time of a launch that reads this many bytes."""
        return _LAUNCH_SECONDS + num_bytes / self._bytes_per_second

    def start(self, num_bytes: int) -> Clock | None:
        """Return a clock if the next list, of this many bytes, is to be measured."""
        if num_bytes < _LEAST_BYTES:
            return None
        self._num_lists += 1
        if self._num_lists % _SAMPLE_EVERY != 2 or self._running is not None:
            return None
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        return num_bytes, began, ended

    def stop(self, clock: Clock) -> None:
        """Stop the clock: the list has been launched."""
        clock[2].record()
        self._running = clock

    def look(self) -> None:
        """Read the clock of a measured list that is done. Any thread."""
        running = self._running
        if running is not None and running[2].query():
            self._running = None
            num_bytes, began, ended = running
            seconds = began.elapsed_time(ended) / 1e3
            if seconds > 0:
                self._bytes_per_second = num_bytes / seconds
