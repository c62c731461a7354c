"""Find the models of an unchanged training script."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import get_worker_info

from vario.backends.protocols.losses import BackwardLoss
from vario.backends.torch import releases
from vario.backends.torch.engines import ENGINES
from vario.backends.torch.loop import hooks
from vario.backends.torch.loop.backward_losses import EarlyLosses
from vario.backends.torch.loop.live_instances import live_instances, one_look
from vario.backends.torch.loop.training_threads import within_reach
from vario.backends.torch.optimizer.loose_parameters import loose_parameters
from vario.backends.torch.optimizer.weight_changes import WeightChanges
from vario.backends.torch.targets import is_watched
from vario.core.process import last_guard

Models = dict[str, torch.nn.Module]

_MAX_CALLS = 50
"""This many calls of a model without an optimizer show whether the script updates it itself."""


class Search:
    """Looks for models in training, on three occasions.

    The first forward with gradients of a model that an optimizer has; the first update of an optimizer whose models are
    not followed, called or not; and a forward of a model that changed since its last one without any optimizer.
    """

    def __init__(
        self,
        found: Callable[[Models, int, Sequence[BackwardLoss]], None],
        is_followed: Callable[[torch.optim.Optimizer], bool],
        is_busy: Callable[[], bool],
    ) -> None:
        """`found(models, step, losses)` gets the number of updates they have had, and the losses of the step that has
        ended or is about to; `is_busy()`: something is being watched."""
        self._found = found
        self._is_followed = is_followed
        self._is_busy = is_busy
        self._handle: Any = None
        # The extra call that torch warns about is what finds a compiled model.
        warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks", UserWarning)
        self._undo = hooks.Undos()
        self._undo.add(hooks.around_updates(self._update_began, lambda *_: None))
        self._undo.add(hooks.after_making(torch.optim.Optimizer, self._optimizer_came))
        self.begin()

    def begin(self) -> None:
        """Start from scratch: at the start, or in a process that was forked."""
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._given_up: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._candidates: list[_Candidate] = []
        self._losses = EarlyLosses()
        self._lock = threading.RLock()  # several threads may train
        self._passed_over: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Parts of models already watched, found while looking for one of a new optimizer."""
        self.has_forward = False
        """Whether a module with parameters was called with gradients enabled."""
        self.has_backward = False
        """Whether backward reached the parameters of one without an optimizer."""
        self._look()

    def stop(self) -> None:
        """Stop looking."""
        self._undo()
        self._look_no_more()

    def why_nothing(self) -> str:
        """Return why no model was found so far and what to do, in one sentence."""
        if not self.has_forward:
            return (
                "no module with parameters was called with gradients enabled, and no torch optimizer made an update. "
                "If another process does the training, start it with `vario run`"
            )
        if not self.has_backward:
            return (
                "models were called, but no gradient reached their parameters and no torch optimizer made an update. "
                "To watch an evaluation, add `vario.watch(model)` to the script"
            )
        return (
            "gradients were computed, but no weight changed between calls of the model and no torch optimizer stepped. "
            "Add `monitor = vario.watch(model)` to the script, and `monitor.step()` after each step"
        )

    def _look(self) -> None:
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(
                releases.run_eagerly(last_guard.never_raises(self._before_forward))
            )
            self._losses.attach()

    def _look_no_more(self) -> None:
        for candidate in self._candidates:
            candidate.let_go()
        self._candidates = []
        self._passed_over.clear()
        self._losses.detach()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _optimizer_came(self) -> None:
        """Note a new optimizer: the next forward may be the first of its model."""
        self._look_no_more()
        self._look()

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        if self._handle is None or torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        if module in self._passed_over:
            return
        with self._lock:
            candidate = next((one for one in self._candidates if one.has(module)), None)
            if candidate is not None:
                self._ask(candidate, module, args)
            elif get_worker_info() is None and any(parameter.requires_grad for parameter in module.parameters()):
                self.has_forward = True
                with one_look(torch.nn.Module, torch.optim.Optimizer):
                    self._tell(module, args)

    def _ask(self, candidate: _Candidate, module: torch.nn.Module, args: Any) -> None:
        if candidate.model() is not module:
            return
        self.has_backward = self.has_backward or candidate.has_gradient
        if candidate.was_updated():
            self._look_no_more()
            self._found_at_call({"": module}, 1, module, args)
        elif candidate.num_calls > _MAX_CALLS:
            candidate.let_go()
            self._candidates.remove(candidate)

    def _tell(self, module: torch.nn.Module, args: Any) -> None:
        models = _of_this_thread(models_in_training(module, self._known), module)
        if is_watched(module):
            # A new optimizer of the same model changes nothing. One of another model that trains beside this one does.
            models = models_in_training(module) if models else {}
        elif any(torch.nn.parameter.is_lazy(one) for model in models.values() for one in model.parameters()):
            # Their first forward gives them shapes; the first update shows when to look again.
            self._look_no_more()
            self._losses.attach()
            return
        elif not models and any(_is_held_by(optimizer, module) for optimizer in live_optimizers()):
            # The new optimizer is for the next stage of a model that is already watched: its updates are followed.
            self._passed_over.update(module.modules())
            return
        elif not models:
            # Nothing trains it yet. Either the script updates it itself, or the first update shows when to look again.
            self._candidates.append(_Candidate(module))
            return
        self._look_no_more()
        if models:
            self._found_at_call(models, 0, module, args)
            if _is_one_of_several_threads():
                self._look()
                self._passed_over.update(part for model in models.values() for part in model.modules())

    def _found_at_call(self, models: Models, step: int, module: torch.nn.Module, args: Any) -> None:
        self._known.update(models.values())
        before = set(module._forward_pre_hooks)
        self._found(models, step, self._losses.take() if step else ())
        # This call has already read its list of hooks: the new ones would miss the start of the pass.
        for number, hook in list(module._forward_pre_hooks.items()):
            if number not in before:
                hook(module, args, {})

    def _update_began(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._given_up and get_worker_info() is None:
            with self._lock:
                self._look_at_update(optimizer)

    def _look_at_update(self, optimizer: torch.optim.Optimizer) -> None:
        losses = self._losses.take()
        if self._is_followed(optimizer):
            if self._passed_over:
                self._look_no_more()  # everything called since the new optimizer was created is watched
            return
        self._given_up.add(optimizer)
        models = models_in_training(None)
        own = [model for model in models.values() if _is_held_by(optimizer, model)]
        if not own:
            loose = None if self._is_busy() else loose_parameters(optimizer)
            models = {} if loose is None else {"": loose}
        elif not any(model in self._known for model in own):
            models = models_in_training(None, self._known)
        # Otherwise models that seemed to be trained one after the other are trained in turns: watch them together.
        if models:
            self._look_no_more()
            self._known.update(models.values())
            self._found(models, 0, losses)


def _is_one_of_several_threads() -> bool:
    return threading.current_thread() is not threading.main_thread()


def _of_this_thread(models: Models, called: torch.nn.Module) -> Models:
    """Drop models that another thread may be about to train; the main thread takes all."""
    if len(models) < 2 or not _is_one_of_several_threads():
        return models
    near = within_reach()
    own = {
        name: model
        for name, model in models.items()
        if id(model) in near or any(part is called for part in model.modules())
    }
    return {"": next(iter(own.values()))} if len(own) == 1 else own


def _is_held_by(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> bool:
    held = set(hooks.parameter_ids(optimizer))
    return any(id(parameter) in held for parameter in model.parameters())


class _Candidate:
    """A model that is called with gradients and has no optimizer."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = weakref.ref(model)
        self.num_calls = 1
        self.has_gradient = False
        self._parts = weakref.WeakSet(model.modules())
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._changes = WeightChanges(parameters)
        self._undo = hooks.Undos()
        for parameter in parameters:
            if not torch.nn.parameter.is_lazy(parameter):
                self._undo.add(hooks.on_gradient(parameter, self._gradient_came))

    def has(self, module: torch.nn.Module) -> bool:
        """Whether a module is this model, or a part of it."""
        return module in self._parts

    def was_updated(self) -> bool:
        """Whether there were gradients and weights have changed since the previous call of the model."""
        self.num_calls += 1
        return self.has_gradient and self._changes.changed()

    def let_go(self) -> None:
        """Remove all hooks from the model."""
        self._undo()

    def _gradient_came(self, gradient: torch.Tensor) -> None:
        if not self.has_gradient:
            self.has_gradient = True
            self._changes.note()


def live_optimizers() -> list[torch.optim.Optimizer]:
    """Return all live torch optimizers."""
    return [optimizer for optimizer in live_instances(torch.optim.Optimizer) if _is_whole(optimizer)]


def _is_whole(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer shows its parameters: one under construction does not, nor one that was taken apart."""
    try:
        hooks.parameter_ids(optimizer)
    except Exception:  # noqa: BLE001 - a foreign object
        return False
    return True


def models_in_training(called: torch.nn.Module | None, known: Collection[torch.nn.Module] = ()) -> Models:
    """Return the outermost live modules with parameters in a live optimizer, without those already known."""
    trained = {number for optimizer in live_optimizers() for number in hooks.parameter_ids(optimizer)}
    trained.update(number for engine in ENGINES for number in engine.part.trained_elsewhere())
    modules = [module for module in live_instances(torch.nn.Module) if "_modules" in module.__dict__]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [
        module
        for module in modules
        if id(module) not in inner
        and module not in known
        and any(id(parameter) in trained for parameter in module.parameters())
    ]
    outermost = _without_parts(sorted(outermost, key=lambda module: module is not called))
    if len(outermost) == 1:
        return {"": outermost[0]}
    names: Models = {}
    for module in outermost:
        name = type(module).__name__.lower()
        names[name if name not in names else f"{name}{len(names)}"] = module
    return names


def _without_parts(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Leave out those all of whose parameters are in another one: a program may wrap a part of its model for a call."""
    if len(modules) < 2:
        return modules
    held = [frozenset(map(id, module.parameters())) for module in modules]
    return [
        module
        for at, module in enumerate(modules)
        if not any(held[at] < other or (held[at] == other and before < at) for before, other in enumerate(held))
    ]
