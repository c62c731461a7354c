"""Hugging Face's Trainer, and those of TRL and sentence-transformers, which derive from it."""

from __future__ import annotations

from typing import Any

from vario.backends.protocols.events import Undo
from vario.backends.torch.loop import hooks
from vario.backends.torch.trainers.listener import Listener

MODULES = ("transformers.trainer_callback",)


def follow(module: Any, listener: Listener) -> Undo:
    """Take what it logs, including evaluations."""
    undo = hooks.Undos()

    def logged(handler: Any, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        has_ours = any(type(callback).__module__.startswith("vario.") for callback in handler.callbacks)
        if logs and not has_ours and listener.is_ours([handler.model]):
            listener.report(logs)

    def step_began(handler: Any, *_: Any, **__: Any) -> None:
        # It logs the sum of the losses it calls backward on: it has divided them by batches, or by items of the step.
        if listener.is_ours([handler.model]):
            listener.losses_add_up()

    undo.add(hooks.around(module.CallbackHandler, "on_log", listener.guarded(logged), with_keywords=True))
    undo.add(hooks.around(module.CallbackHandler, "on_step_begin", listener.guarded(step_began), with_keywords=True))
    return undo
