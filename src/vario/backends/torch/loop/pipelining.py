"""Schedules of `torch.distributed.pipelining`: which call is which micro-step, and when gradients are complete.

A stage calls its module once per micro-batch, several times before the first backward. After the last backward it
reduces gradients over data-parallel ranks if FSDP leaves that to it, and divides them by the number of micro-batches.
All of that happens outside autograd, so only the stage knows.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vario.backends.torch import naming
from vario.backends.torch.loop import hooks
from vario.core.clock import Clock

_STAGE = "torch.distributed.pipelining.stage"
_COMPLETING = ("scale_grads", "perform_reduce_grad")
"""Methods that change a stage's gradients after backward; not all releases have both."""


class Pipelines:
    """Follows the stages that run any of the watched models."""

    def __init__(
        self,
        roots: Mapping[str, torch.nn.Module],
        clock: Clock,
        gradients_changed: Callable[[], None],
        guarded: Callable[[Callable[..., None]], Callable[..., None]],
    ) -> None:
        """`guarded` keeps errors here from raising into a schedule."""
        self._roots = {name: id(naming.unwrap(root)) for name, root in roots.items()}
        self._run_by_stages: set[int] = set()
        self._running: int | None = None
        """The model of the stage that is in a forward pass right now."""
        self._models = list(roots.values())
        self._parameters: set[int] = set()
        self._clock = clock
        self._gradients_changed = gradients_changed
        self._guarded = guarded
        self._undo = hooks.Undos()
        self._is_following = False

    def look(self) -> None:
        """Start following stages, once there can be any."""
        if self._is_following or _STAGE not in sys.modules or not torch.distributed.is_initialized():
            return
        self._is_following = True
        self._parameters.update(id(parameter) for root in self._models for parameter in root.parameters())
        stage_class = getattr(sys.modules[_STAGE], "_PipelineStageBase", None)
        if stage_class is None:
            return
        for method in _COMPLETING:
            if hasattr(stage_class, method):
                self._undo.add(hooks.around(stage_class, method, self._guarded(self._completed)))
        if hasattr(stage_class, "forward_one_chunk"):
            before, after = self._guarded(self._forward_began), self._guarded(self._forward_ended)
            self._undo.add(hooks.around(stage_class, "forward_one_chunk", after, before=before))
        # Its first call, which infers shapes, comes before its first pass.
        self._undo.add(hooks.around(stage_class, "__init__", self._guarded(self._made)))
        for found in gc.get_objects():
            if issubclass(type(found), stage_class):
                self._note(found)

    def detach(self) -> None:
        """Leave the stages as they were."""
        self._undo()

    def is_rehearsal(self, root: str) -> bool:
        """Whether a stage's model is called by something else, as stages do once to infer its shapes."""
        model = self._roots[root]
        return model in self._run_by_stages and self._running != model

    def _note(self, stage: Any) -> int | None:
        """Return the watched model of a stage, if any; each of its calls is a micro-step from now on."""
        model = getattr(stage, "submod", None)
        found = id(naming.unwrap(model)) if isinstance(model, torch.nn.Module) else None
        if found not in self._roots.values():
            return None
        assert found is not None
        self._run_by_stages.add(found)
        self._clock.calls_are_passes = True
        return found

    def _made(self, stage: Any, *_: Any) -> None:
        self._note(stage)

    def _forward_began(self, stage: Any, *_: Any) -> None:
        self._running = self._note(stage)

    def _forward_ended(self, stage: Any, *_: Any) -> None:
        self._running = None

    def _completed(self, stage: Any, *_: Any) -> None:
        model = getattr(stage, "submod", None)
        if isinstance(model, torch.nn.Module) and any(id(held) in self._parameters for held in model.parameters()):
            self._gradients_changed()
