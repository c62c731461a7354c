"""Finding the models of an unchanged training script."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import get_worker_info

from vario.backends.losses import BackwardLoss
from vario.backends.torch import releases
from vario.backends.torch.engines import ENGINES
from vario.backends.torch.loop import hooks
from vario.backends.torch.loop.backward_losses import EarlyLosses
from vario.backends.torch.loop.live_instances import live_instances
from vario.backends.torch.loop.training_threads import within_reach
from vario.backends.torch.optimizer.loose_parameters import loose_parameters
from vario.backends.torch.optimizer.weight_changes import WeightChanges
from vario.backends.torch.targets import is_watched

Models = dict[str, torch.nn.Module]

_MAX_CALLS = 50
"""So many calls of a model that no optimizer holds show whether the script updates it by itself."""


class Search:
    """Looks for models in training, at three occasions.

    The first forward with gradients of a model that an optimizer holds; the first update of an optimizer whose models
    nobody follows, called or not; and a forward of a model that changed since its last one with no optimizer at all.
    """

    def __init__(
        self,
        found: Callable[[Models, int, Sequence[BackwardLoss]], None],
        is_followed: Callable[[torch.optim.Optimizer], bool],
        is_busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """`found(models, step, losses)`: with how many updates they have had, and what the loop went back from in the
        step that is over or about to be; `is_busy()`: something is being watched."""
        self._found = found
        self._is_followed = is_followed
        self._is_busy = is_busy
        self._handle: Any = None
        # The extra call that torch warns of is what finds a compiled model.
        warnings.filterwarnings("ignore", "Using `torch.compile\\(module\\)` when there are global hooks", UserWarning)
        self._undo = hooks.Undos()
        self._undo.add(hooks.around_updates(self._update_began, lambda *_: None))
        self._undo.add(hooks.after_making(torch.optim.Optimizer, self._optimizer_came))
        self.begin()

    def begin(self) -> None:
        """Look, knowing nothing: at the start, or in a process that was forked."""
        self._known: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._given_up: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._candidates: list[_Candidate] = []
        self._losses = EarlyLosses()
        self._lock = threading.RLock()  # several threads may train
        self._passed_over: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Parts of models that are watched already, met while looking for one that a new optimizer holds."""
        self.has_forward = False
        """Whether a module with parameters was called with gradients on."""
        self.has_backward = False
        """Whether backward reached the parameters of one that no optimizer holds."""
        self._look()

    def stop(self) -> None:
        """Look no more."""
        self._undo()
        self._look_no_more()

    def _look(self) -> None:
        if self._handle is None:
            self._handle = register_module_forward_pre_hook(releases.run_eagerly(self._before_forward))
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
        """The next forward may be the first of a model that this new optimizer holds."""
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
            # Their first forward gives them shapes; the first update says when to look again.
            self._look_no_more()
            self._losses.attach()
            return
        elif not models and any(_is_held_by(optimizer, module) for optimizer in live_optimizers()):
            # The new optimizer is for the next stage of a model that is watched already: its updates are followed.
            self._passed_over.update(module.modules())
            return
        elif not models:
            # Nothing trains it yet. The script may do that by hand, or the first update says when to look again.
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
        # This call has read its list of hooks already: the new ones would miss where the pass begins.
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
                self._look_no_more()  # what was called since the new optimizer came is all watched
            return
        self._given_up.add(optimizer)
        models = models_in_training(None)
        own = [model for model in models.values() if _is_held_by(optimizer, model)]
        if not own:
            loose = None if self._is_busy() else loose_parameters(optimizer)
            models = {} if loose is None else {"": loose}
        elif not any(model in self._known for model in own):
            models = models_in_training(None, self._known)
        # Else models that were taken for one after the other are trained in turns: now they are watched together.
        if models:
            self._look_no_more()
            self._known.update(models.values())
            self._found(models, 0, losses)


def _is_one_of_several_threads() -> bool:
    return threading.current_thread() is not threading.main_thread()


def _of_this_thread(models: Models, called: torch.nn.Module) -> Models:
    """Without models that another thread may be about to train; the main thread takes what there is."""
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
    """A model that is called with gradients while no optimizer holds it."""

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
        """Whether gradients came and weights have changed since the model was called before."""
        self.num_calls += 1
        return self.has_gradient and self._changes.changed()

    def let_go(self) -> None:
        """Leave the model alone."""
        self._undo()

    def _gradient_came(self, gradient: torch.Tensor) -> None:
        if not self.has_gradient:
            self.has_gradient = True
            self._changes.note()


def live_optimizers() -> list[torch.optim.Optimizer]:
    """All torch optimizers there are."""
    return [optimizer for optimizer in live_instances(torch.optim.Optimizer) if _is_whole(optimizer)]


def _is_whole(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer shows what it holds: one that is being made does not, nor does one that was taken apart."""
    try:
        hooks.parameter_ids(optimizer)
    except Exception:  # noqa: BLE001 - somebody else's object
        return False
    return True


def models_in_training(called: torch.nn.Module | None, known: Collection[torch.nn.Module] = ()) -> Models:
    """The outermost live modules whose parameters a live optimizer holds, without those known before."""
    trained = {number for optimizer in live_optimizers() for number in hooks.parameter_ids(optimizer)}
    trained.update(number for engine in ENGINES for number in engine.part.trained_elsewhere())
    live = gc.get_objects()
    modules = [item for item in live if issubclass(type(item), torch.nn.Module) and "_modules" in item.__dict__]
    inner = {id(child) for module in modules for child in module._modules.values() if child is not None}
    outermost = [
        module
        for module in modules
        if id(module) not in inner
        and module not in known
        and any(id(parameter) in trained for parameter in module.parameters())
    ]
    if len(outermost) == 1:
        return {"": outermost[0]}
    names: Models = {}
    for module in sorted(outermost, key=lambda module: module is not called):
        name = type(module).__name__.lower()
        names[name if name not in names else f"{name}{len(names)}"] = module
    return names
