"""Predicts memory when the first batch is known: before the step that would run out."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

from vario.analysis.memory import MemoryPrediction, predict_memory
from vario.backends.torch.memory_simulation.batches import called_with
from vario.core.text import size

log = logging.getLogger("vario")


class FirstBatch:
    """Waits for a model's first batch, predicts the peak of a step from its shapes, and reports it once."""

    def __init__(self, model: Any, told: Callable[[MemoryPrediction], None], **options: Any) -> None:
        self._model = model
        self._told = told
        self._options = options
        self._handle = model.register_forward_pre_hook(_not_compiled(self._called), with_kwargs=True)

    def stop(self) -> None:
        """Stop waiting."""
        self._handle.remove()

    def _called(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not model.training:
            return
        self.stop()
        predict_for(self._told, model, lambda: called_with(model, args, kwargs), **self._options)


def predict_for(told: Callable[[MemoryPrediction], None], model: Any, batch: Callable[[], Any], **options: Any) -> None:
    """Report the peak of a step, or warn why it cannot be predicted; training continues in either case."""
    try:
        with warnings.catch_warnings():
            # Warnings about a module without its trainer, for example about logging.
            warnings.simplefilter("ignore")
            found = predict_memory(model, batch(), **options)
    except Exception as error:  # noqa: BLE001 - training goes on without a prediction
        log.warning("memory is not predicted: %s: %s", type(error).__name__, error)
    else:
        told(found)


def _not_compiled(hook: Callable[..., None]) -> Callable[..., None]:
    """Keep a compiled model's hook out of the compiled graph."""
    if "torch._dynamo" not in sys.modules:
        return hook
    import torch

    outside: Callable[..., None] = torch.compiler.disable(hook)  # type: ignore[no-untyped-call]
    return outside


def prediction_line(found: MemoryPrediction) -> str:
    """Format a prediction in one line, for the training output."""
    where = "the optimizer" if found.phase == "optimizer" else f"the {found.phase} pass"
    room = f" of {size(found.gpu_bytes)}" if found.gpu_bytes else ""
    reserved = size(found.reserved_bytes)
    most = "at most " if found.is_upper_bound else ""
    return f"predicted peak memory: {most}{size(found.peak_bytes)} in {where}, {reserved} reserved{room}"
