"""accelerate: what a loop passes to `accelerator.log`."""

from __future__ import annotations

from typing import Any

from vario.backends.protocols.events import Undo
from vario.backends.torch.loop import hooks
from vario.backends.torch.trainers.listener import Listener

MODULES = ("accelerate.accelerator",)


def follow(module: Any, listener: Listener) -> Undo:
    """Take what is logged, with or without trackers."""

    def logged(accelerator: Any, values: Any, *_: Any, **__: Any) -> None:
        has_ours = any(getattr(tracker, "name", "") == "vario" for tracker in accelerator.trackers)
        if not has_ours and accelerator.is_main_process and listener.is_ours(accelerator._models):
            listener.report(values)

    return hooks.around(module.Accelerator, "log", listener.guarded(logged), with_keywords=True)
