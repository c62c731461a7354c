"""Where MindSpore tells of a training loop: gradient computations, reductions over ranks, updates and training cells.

In PyNative mode every gradient is computed by two functions of one module, whoever asks for it, and every optimizer is
a cell. They are replaced while a Monitor follows them, and put back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore
from mindspore import nn
from mindspore.experimental.optim import Optimizer as ExperimentalOptimizer
from mindspore.graph.api import _pynative_executor
from mindspore.ops.composite import base
from mindspore.train import Model

from vario.backends.protocols.events import Events

Undo = Callable[[], None]


class Follower:
    """What is told of a training loop; each method does nothing unless it is overridden. No method raises."""

    def computation_began(self) -> None:
        """Take the start of what gradients will be computed of, or of a call that compiles it."""

    def outputs_came(self, computed: Any, outputs: Any) -> None:
        """Take the outputs of a function or cell whose gradients are about to be computed."""

    def backward_began(self, weights: Any, sense: Any) -> None:
        """Gradients of these parameters are about to be computed; `sense`: the output's gradient, such as a loss
        scale."""

    def backward_ended(self, weights: Any, gradients: Any) -> None:
        """Take the gradients."""

    def backward_failed(self, weights: Any) -> None:
        """Note that computing these gradients raised."""

    def reduced(self, before: Any, after: Any) -> None:
        """Take gradients before and after ranks reduced them."""

    def update_began(self, optimizer: Any, gradients: Any) -> None:
        """An optimizer is about to update with these gradients."""

    def update_ended(self, optimizer: Any, gradients: Any) -> None:
        """The optimizer is done."""

    def training_cell_called(self, cell: Any, inputs: tuple[Any, ...]) -> None:
        """A cell that computes gradients and updates is about to run."""

    def training_cell_returned(self, cell: Any, outputs: Any) -> None:
        """Take what that cell returned."""

    def sinking_began(self, model: Any) -> None:
        """A `mindspore.train.Model` is about to run many steps in one call, with its dataset on the device."""


_METHODS = tuple(name for name in vars(Follower) if not name.startswith("_"))


def guarded(followed: Any, events: Events, part: str) -> Follower:
    """Return a follower with the methods that `followed` has; they switch the part off instead of raising."""
    follower = Follower()
    for name in _METHODS:
        if hasattr(followed, name):
            setattr(follower, name, events.guarded(part, getattr(followed, name)))
    return follower


_SINKING = "_train_dataset_sink_process"
_followers: list[Follower] = []
_undos: list[Undo] = []
_num_backward = 0
"""Gradient computations in progress, one inside the other."""


def follow(follower: Follower) -> Undo:
    """Tell this follower of every training loop of the process, from now on; return a call that ends it."""
    if not _followers:
        _undos.extend(_replace_all())
    _followers.append(follower)

    def undo() -> None:
        if follower in _followers:
            _followers.remove(follower)
            if not _followers:
                while _undos:
                    _undos.pop()()

    return undo


def is_graph_mode() -> bool:
    """Whether cells are compiled when they are called."""
    return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)


def is_recording() -> bool:
    """Whether what runs now is recorded for a gradient: a training pass."""
    return bool(_pynative_executor.requires_grad())


def is_in_backward() -> bool:
    """Whether gradients are being computed: a forward in it is a recomputation."""
    return _num_backward > 0


def _replace_all() -> list[Undo]:
    return [
        replace(base, "_pynative_func_grad_backward", _computing),
        replace(_pynative_executor, "new_graph", _beginning),
        replace(_pynative_executor, "end_graph", _ending),
        replace(base._Grad, "__call__", _differentiating),
        replace(nn.Optimizer, "__call__", _updating),
        replace(ExperimentalOptimizer, "__call__", _updating),
        replace(nn.DistributedGradReducer, "__call__", _reducing),
        replace(nn.TrainOneStepCell, "__call__", _training),
        replace(Model, _SINKING, _sinking),
    ]


def after_making(made: Callable[[Any], None]) -> Undo:
    """Call `made` with every optimizer that is made from now on; return a call that ends it."""

    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            made(optimizer)

        return init

    undos = [replace(kind, "__init__", making) for kind in (nn.Optimizer, ExperimentalOptimizer)]

    def undo() -> None:
        while undos:
            undos.pop()()

    return undo


def replace(owner: Any, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Undo:
    """Replace an attribute by one that calls it; the undo also removes what was only inherited before."""
    is_own, original = name in vars(owner), getattr(owner, name)
    before = vars(owner).get(name)
    setattr(owner, name, wrapped(original))

    def undo() -> None:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)

    return undo


def _beginning(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_graph(*args: Any, **kwargs: Any) -> Any:
        for follower in tuple(_followers):
            follower.computation_began()
        return original(*args, **kwargs)

    return new_graph


def _differentiating(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(grad: Any, *args: Any, **kwargs: Any) -> Any:
        if is_graph_mode():  # what is compiled for this gradient cannot be changed any more
            for follower in tuple(_followers):
                follower.computation_began()
        return original(grad, *args, **kwargs)

    return call


def _ending(original: Callable[..., Any]) -> Callable[..., Any]:
    def end_graph(obj: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(obj, output, *args, **kwargs)
        for follower in tuple(_followers):
            follower.outputs_came(obj, output)
        return result

    return end_graph


def _computing(original: Callable[..., Any]) -> Callable[..., Any]:
    def grad_backward(fn: Any, grad: Any, weights: Any, position: Any, has_aux: Any, *args: Any) -> Any:
        told = tuple(_followers) if weights is not None else ()
        sense = args[-1] if grad.sens_param and args else None
        global _num_backward
        for follower in told:
            follower.backward_began(weights, sense)
        _num_backward += 1
        try:
            found = original(fn, grad, weights, position, has_aux, *args)
        except BaseException:
            for follower in told:
                follower.backward_failed(weights)
            raise
        finally:
            _num_backward -= 1
        of_inputs = bool(grad.get_all or getattr(grad, "get_by_position", False))
        gradients = found[1] if of_inputs and isinstance(found, tuple) and len(found) == 2 else found
        for follower in told:
            follower.backward_ended(weights, gradients)
        return found

    return grad_backward


def _updating(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        told = tuple(_followers)
        gradients = args[0] if args else kwargs.get("gradients")
        for follower in told:
            follower.update_began(optimizer, gradients)
        result = original(optimizer, *args, **kwargs)
        for follower in told:
            follower.update_ended(optimizer, gradients)
        return result

    return call


def _reducing(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(reducer: Any, grads: Any) -> Any:
        result = original(reducer, grads)
        for follower in tuple(_followers):
            follower.reduced(grads, result)
        return result

    return call


def _training(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(cell: Any, *inputs: Any, **kwargs: Any) -> Any:
        for follower in tuple(_followers):
            follower.computation_began()
        told = tuple(_followers)  # with those that have just found their model
        for follower in told:
            follower.training_cell_called(cell, inputs)
        result = original(cell, *inputs, **kwargs)
        for follower in told:
            follower.training_cell_returned(cell, result)
        return result

    return call


def _sinking(original: Callable[..., Any]) -> Callable[..., Any]:
    def process(model: Any, *args: Any, **kwargs: Any) -> Any:
        for follower in tuple(_followers):
            follower.sinking_began(model)
        return original(model, *args, **kwargs)

    return process
