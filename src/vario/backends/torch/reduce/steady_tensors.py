"""Which tensors keep their values until the end of their pass, so that they can be reduced together there.

A tensor that is modified in place before its turn has lost its values, and custom kernels do that without torch
noticing. So a name counts as steady once its tensors were reduced twice in two steps, immediately and after a wait,
with the same values both times.
"""

from __future__ import annotations

from typing import Any

import torch

from vario.backends.torch.reduce.tensors import version_of

MOST_BYTES, MOST_WAITING_BYTES = 8 << 20, 24 << 20
"""Bytes of the largest tensor that waits, and of all that only waiting keeps: a larger one is reduced at once."""
MOST_BYTES_ON_DEVICE, MOST_WAITING_BYTES_ON_DEVICE, MOST_GRADIENT_BYTES_ON_DEVICE = 48 << 20, 256 << 20, 1 << 30
"""The same on a device with so much memory to spare that they are a small part of what is free; the last for gradients,
which come to wait while backward frees the activations. There a launch takes longer than reading."""
MOST_WAITING = 4096
"""The most tensors that wait together."""
_MEASURED_EVERY = 64
_LOOKS = 2
"""How often the tensor of a name must have stayed the same."""

Name = tuple[str, str]
"""A quantity and a target."""


class Room:
    """How much memory tensors may keep by waiting."""

    def __init__(self) -> None:
        self.of_one, self.of_values, self.of_gradients = MOST_BYTES, MOST_WAITING_BYTES, 2 * MOST_WAITING_BYTES
        self._uses = 0

    def measure(self) -> None:
        """Look at the free memory of the device, now and then."""
        self._uses += 1
        if self._uses % _MEASURED_EVERY == 1 and torch.cuda.is_initialized():
            if torch.cuda.is_current_stream_capturing():
                return
            free, _ = torch.cuda.mem_get_info()
            self.of_gradients = min(max(free // 100, 2 * MOST_WAITING_BYTES), MOST_GRADIENT_BYTES_ON_DEVICE)
            self.of_values = min(max(free // 400, MOST_WAITING_BYTES), MOST_WAITING_BYTES_ON_DEVICE)
            self.of_one = min(max(free // 800, MOST_BYTES), MOST_BYTES_ON_DEVICE)


room = Room()
"""That of this process."""


_USES = getattr(torch.Tensor, "_use_count", None), getattr(torch._C, "_storage_Use_Count", None)


def is_kept_anyway(tensor: torch.Tensor) -> bool:
    """Whether something besides Python has this tensor or its memory, as autograd does until backward."""
    uses, storage_uses = _USES
    if uses is None or storage_uses is None:
        return False  # a release that does not tell
    try:
        # One use of the memory is the tensor, one the object that this line makes.
        return bool(uses(tensor) > 1 or storage_uses(tensor.untyped_storage()._cdata) > 2)
    except RuntimeError:
        return False  # torch.func has tensors without memory of their own


class Followed:
    """Tensors of one stream that were reduced at once, with their rows, to be reduced again."""

    def __init__(self, device_rows: Any, stream: int) -> None:
        self.device_rows = device_rows
        self.stream = stream
        self.tensors: list[torch.Tensor] = []
        self.rows: list[int] = []
        self.names: list[Name] = []
        self._versions: list[int] = []
        self._num_bytes = 0

    def takes(self, device_rows: Any, stream: int) -> bool:
        """Whether one more such tensor may wait with the others."""
        is_there = self.stream == stream and self.device_rows is device_rows
        return is_there and self._num_bytes < 2 * MOST_WAITING_BYTES and len(self.tensors) < MOST_WAITING

    def add(self, tensor: torch.Tensor, row: int, name: Name) -> None:
        """Keep a tensor until it is reduced again."""
        version = version_of(tensor)
        if version >= 0:
            self.tensors.append(tensor.detach())
            self.rows.append(row)
            self.names.append(name)
            self._versions.append(version)
            self._num_bytes += tensor.nbytes

    def drop_modified(self) -> list[Name]:
        """Remove those that were modified meanwhile, as far as torch knows; return their names."""
        changed = [at for at, tensor in enumerate(self.tensors) if tensor._version != self._versions[at]]
        dropped = [self.names[at] for at in changed]
        for at in reversed(changed):
            del self.tensors[at], self.rows[at], self.names[at], self._versions[at]
        return dropped


class SteadyTensors:
    """Remembers which names are steady."""

    def __init__(self) -> None:
        self.followed: Followed | None = None
        self._looks: dict[Name, int] = {}
        """How often a name's tensor had the same values after a wait; below zero: it had others."""

    def is_steady(self, name: Name) -> bool:
        """Whether tensors of this name may be reduced later."""
        return self._looks.get(name, 0) >= _LOOKS

    def is_unknown(self, name: Name) -> bool:
        """Whether to find out if this name is steady."""
        return 0 <= self._looks.get(name, 0) < _LOOKS

    def learn(self, name: Name, is_same: bool) -> None:
        """Note whether the tensor of a name had the same values after a wait. Any thread."""
        known = self._looks.get(name, 0)
        self._looks[name] = known + 1 if is_same and known >= 0 else -1
