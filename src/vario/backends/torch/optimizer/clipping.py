"""Follows torch's clipping of gradients by their norm, which accelerate, Lightning and the Trainer use as well."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.utils import clip_grad

from vario.backends.protocols.events import Undo
from vario.backends.torch.loop import hooks, patching
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.reduce.tensors import local_part
from vario.core.process import last_guard

Clipped = Callable[[Any, float, Any], None]
"""Takes the gradients' parameters, the limit and the norm before clipping."""

_NAMES = ("_clip_grads_with_norm_", "clip_grads_with_norm_")
"""What `clip_grad_norm_` calls under whatever name it was imported, and the public name of the same."""

_told: list[Clipped] = []


def follow(clipped: Clipped) -> Undo:
    """Call `clipped` for every clipping of this process, before it happens."""
    undo = hooks.Undos()
    for namespace in (vars(clip_grad), vars(torch.nn.utils)):
        for name in _NAMES:
            if name in namespace:
                undo.add(patching.replace(namespace, name, _around))
    _told.append(clipped)
    undo.add(lambda: _told.remove(clipped))
    return undo


def norm_later(norm: Any) -> Callable[[], float] | None:
    """Start reading a norm; None if it is no number of this process."""
    if not isinstance(norm, torch.Tensor):
        plain = float(norm)
        return lambda: plain
    number = local_part(norm)
    if number is None or number.numel() != 1 or hasattr(norm, "to_local"):
        return None
    if number.is_cpu:
        value = float(number)  # the caller may change it in place
        return lambda: value
    fetch = fetch_later(number.reshape(()))
    return lambda: float(fetch())


def _around(original: Any) -> Any:
    @functools.wraps(original)
    def clips(*args: Any, **kwargs: Any) -> Any:
        given: dict[str, Any] = dict(zip(("parameters", "max_norm", "total_norm"), args, strict=False)) | kwargs
        if _told and not torch.compiler.is_compiling() and "total_norm" in given:
            for tell in tuple(_told):
                last_guard.safely(tell, given.get("parameters"), given.get("max_norm", math.inf), given["total_norm"])
        return original(*args, **kwargs)

    return clips
