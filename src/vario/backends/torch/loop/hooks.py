"""Attach to torch: every function returns its undo.

One undo removes one handle; `Undos` keeps many and runs them in reverse. Nothing here replaces a method except
`around`, for objects without hooks (a GradScaler, a runtime's own optimizer), and its undo restores the original.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from vario.backends.protocols.events import Undo
from vario.core.process import last_guard


class Undos:
    """A stack of undos."""

    def __init__(self) -> None:
        self._undos: list[Undo] = []

    def add(self, undo: Undo) -> None:
        """Add one undo."""
        self._undos.append(undo)

    def __call__(self) -> None:
        """Undo everything, latest first."""
        while self._undos:
            last_guard.safely(self._undos.pop())


def on_gradient(tensor: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Undo:
    """Run `call(gradient)` when backward has computed the gradient of a tensor, before it is accumulated."""
    undo: Undo = tensor.register_hook(last_guard.never_raises(call)).remove
    return undo


def after_accumulation(tensor: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Undo:
    """Run `call(tensor)` when backward has added to the gradient of a tensor."""
    undo: Undo = tensor.register_post_accumulate_grad_hook(last_guard.never_raises(call)).remove
    return undo


def after_node(parameter: torch.Tensor, call: Callable[[torch.Tensor], None]) -> Undo:
    """Run `call(gradient)` when a parameter's current node in the graph has accumulated a gradient.

    It ends with that graph, unless something keeps the node.
    """
    node = torch.autograd.graph.get_gradient_edge(parameter).node

    def came(_: Any, gradients: Any) -> None:
        call(gradients[0])

    undo: Undo = node.register_hook(last_guard.never_raises(came)).remove
    return undo


def around_updates(
    began: Callable[[torch.optim.Optimizer, Any, Any], None], ended: Callable[[torch.optim.Optimizer, Any, Any], None]
) -> Undo:
    """Run `began` and `ended` around `step` of every torch optimizer in the process; may be undone inside either."""
    if not _update_hooks:
        tell = [last_guard.never_raises(functools.partial(_tell_followers, which)) for which in (_BEGAN, _ENDED)]
        _update_hooks.append(register_optimizer_step_pre_hook(tell[_BEGAN]).remove)
        _update_hooks.append(register_optimizer_step_post_hook(tell[_ENDED]).remove)
    follower = began, ended
    _update_followers.append(follower)

    def undo() -> None:
        _update_followers.remove(follower)
        # torch iterates over its table of hooks while it calls them: then they stay, and do nothing.
        if not _update_followers and not _notifying:
            while _update_hooks:
                _update_hooks.pop()()

    return undo


UpdateFollower = tuple[
    Callable[[torch.optim.Optimizer, Any, Any], None], Callable[[torch.optim.Optimizer, Any, Any], None]
]
_update_followers: list[UpdateFollower] = []
_update_hooks: list[Undo] = []
_BEGAN, _ENDED = range(2)
_notifying: list[None] = []
"""One entry per `step` whose hooks are running right now."""


def _tell_followers(which: int, *args: Any) -> None:
    _notifying.append(None)
    try:
        told: list[UpdateFollower] = []
        while new := [follower for follower in _update_followers if follower not in told]:
            for follower in new:
                told.append(follower)
                follower[which](*args)
            if which == _ENDED:
                break  # whoever starts to watch now has not seen the start of this update
    finally:
        _notifying.pop()


@dataclass(frozen=True, eq=False)
class _Follower:
    before: Callable[..., None] | None
    after: Callable[..., None] | None
    returned: Callable[[Any], None] | None
    with_keywords: bool


@dataclass(eq=False)
class _Method:
    """A method that `around` has replaced: where, by what, and who follows its calls on which object."""

    place: Any
    original: Any
    ours: Any = None
    followers: dict[int, list[_Follower]] = field(default_factory=dict)


_methods: dict[tuple[int, str], _Method] = {}


def around(
    owner: Any,
    method: str,
    after: Callable[..., None] | None = None,
    *,
    before: Callable[..., None] | None = None,
    returned: Callable[[Any], None] | None = None,
    with_keywords: bool = False,
) -> Undo:
    """Run `before(*args)` when a method of this one object is called, `after(*args)` and `returned(result)` when it has
    returned; several may follow the same method. For a class: of all its objects, which `args` then begin with.

    `with_keywords` passes keyword arguments to `after` as well.
    """
    # In the class if possible: a copy or a pickle of the object would include what is set on the object.
    place = owner if method in vars(owner) else type(owner)
    key = id(place), method
    if key not in _methods:
        _methods[key] = _replace(place, method)
    replaced = _methods[key]
    followers = replaced.followers.setdefault(id(owner), [])
    follower = _Follower(before, after, returned, with_keywords)
    followers.append(follower)

    def undo() -> None:
        followers.remove(follower)
        if not followers:
            del replaced.followers[id(owner)]
        if not replaced.followers and _methods.pop(key, None) is not None:
            _put_back(replaced, method)

    return undo


def _replace(place: Any, method: str) -> _Method:
    in_class = isinstance(place, type)
    replaced = _Method(place, vars(place).get(method))
    original = getattr(place, method)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        owner, told_args = (args[0], args[1:]) if in_class else (place, args)
        told = [(follower, told_args) for follower in replaced.followers.get(id(owner), ())]
        if in_class:
            told += [(follower, args) for follower in replaced.followers.get(id(place), ())]
        for follower, seen in told:
            if follower.before is not None:
                last_guard.safely(follower.before, *seen)
        result = original(*args, **kwargs)
        for follower, seen in told:
            if follower.after is not None:
                named = kwargs if follower.with_keywords else {}
                last_guard.safely(follower.after, *seen, **named)
            if follower.returned is not None:
                last_guard.safely(follower.returned, result)
        return result

    replaced.ours = wrapped
    setattr(place, method, wrapped)
    return replaced


def _put_back(replaced: _Method, method: str) -> None:
    if vars(replaced.place).get(method) is not replaced.ours:
        return  # something else replaced it again and calls ours, which nobody follows
    if replaced.original is None:
        delattr(replaced.place, method)  # inherited
    else:
        setattr(replaced.place, method, replaced.original)


def after_making(kind: type, call: Callable[[], None]) -> Undo:
    """Run `call()` when an object of this class, or of a derived one, is created."""
    original = vars(kind)["__init__"]

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        last_guard.safely(call)

    setattr(kind, "__init__", made)  # noqa: B010 - mypy knows no class without its __init__

    def undo() -> None:
        if vars(kind)["__init__"] is made:
            setattr(kind, "__init__", original)  # noqa: B010

    return undo


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Run `call` once the backward pass in progress has ended, after DDP's and FSDP's own end-of-backward work.

    Those queue their callbacks on the same graph task; queueing twice puts this one behind them.
    """
    queue = torch.autograd.Variable._execution_engine.queue_callback
    queue(lambda: queue(last_guard.never_raises(call)))


def current_backward() -> int:
    """Return a number for the backward pass of this thread, -1 outside: inside one, a forward is a recomputation."""
    return torch._C._current_graph_task_id()


def is_accumulating(parameter: torch.Tensor) -> bool:
    """Whether the backward pass in progress adds to a parameter's gradient; `torch.autograd.grad` does not."""
    try:
        return bool(torch._C._will_engine_execute_node(torch.autograd.graph.get_gradient_edge(parameter).node))
    except RuntimeError:
        return False  # torch's answer for a leaf that autograd.grad was asked for


def parameter_ids(optimizer: torch.optim.Optimizer) -> Iterable[int]:
    """Return the parameters of an optimizer, by identity."""
    return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
