"""ignite: the metrics that engines compute, for training and evaluation."""

from __future__ import annotations

import weakref
from typing import Any

from vario.backends.protocols.events import Undo
from vario.backends.torch.loop import hooks
from vario.backends.torch.trainers.listener import Listener

MODULES = ("ignite.engine.engine",)
_BEGAN, _ENDED = "epoch_started", "epoch_completed"
_WITHIN = ("iteration_started", "iteration_completed")


def follow(module: Any, listener: Listener) -> Undo:
    """Take the metrics of each engine at the end of its epochs."""
    engines = _Engines(listener)
    return hooks.around(module.Engine, "_fire_event", listener.guarded(engines.fired), with_keywords=True)


class _Engines:
    """The running engines: those that train the model, and those that evaluate it meanwhile or between epochs."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._began: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._sources: list[tuple[int, int]] = []

    def fired(self, engine: Any, event: Any, *_: Any, **__: Any) -> None:
        """Take an event that an engine has fired."""
        name = getattr(event, "value", event)
        if name == _BEGAN:
            self._began[engine] = self._listener.step()
        elif engine not in self._began and name in _WITHIN:
            # Watching began in the middle of its epoch, with the first pass: this engine trains.
            self._began[engine] = -1
        elif name == _ENDED and engine in self._began:
            trains = self._began.pop(engine) < self._listener.step()
            ending = "" if trains else self._ending(engine)
            prefix = "train_" if trains or self._is_of_training(engine) else "eval_"
            numbers = {f"{prefix}{name}{ending}": value for name, value in engine.state.metrics.items()}
            self._listener.report(numbers)

    def _is_of_training(self, engine: Any) -> bool:
        """Whether an evaluation runs over the training set."""
        return any(_source(other) == _source(engine) for other in self._began if other is not engine)

    def _ending(self, engine: Any) -> str:
        """Return a suffix that distinguishes evaluations of further sets: `eval_accuracy`, `eval_accuracy/2`."""
        if self._is_of_training(engine):
            return ""
        source = id(engine), _source(engine)
        if source not in self._sources:
            self._sources.append(source)
        nth = self._sources.index(source)
        return f"/{nth + 1}" if nth else ""


def _source(engine: Any) -> int:
    loader = engine.state.dataloader
    return id(getattr(loader, "dataset", loader))
