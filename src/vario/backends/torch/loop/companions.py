"""Finds models that run beside the watched one, and looks at a few numbers of each."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from vario.backends.protocols.companions import Companion
from vario.backends.torch.loop import module_hooks
from vario.backends.torch.loop.live_instances import live_instances

MOST, MOST_WEIGHTS, MOST_ELEMENTS = 4, 8, 16
MOST_FOUND = 16
"""Before training starts, models that another optimizer trains look like companions."""
MOST_SEARCHES = 3
"""A search looks at all objects of the process, which takes a fraction of a second."""
_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm
_DROPOUT = torch.nn.modules.dropout._DropoutNd


class CompanionModels:
    """The models that have no parameter in common with the watched ones and no gradient."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self._found: list[_Model] = []
        self._num_searches = 0
        self._is_known = False

    def companions(self) -> list[Companion]:
        """Return the state of each; the first look finds them, and so does one after another has taken its place."""
        if not self._is_known or any(model.is_gone and not model.is_trained for model in self._found):
            self.search()
        beside = [model for model in self._found if not model.is_gone and not model.trains()]
        return [model.look(self._parameters) for model in beside[:MOST]]

    def forget(self) -> None:
        """Leave all of them as they were, also if a last step ends after this."""
        found, self._found = self._found, []
        self._num_searches = MOST_SEARCHES
        for model in found:
            model.forget()

    def search(self) -> None:
        """Find them."""
        if self._num_searches == MOST_SEARCHES:
            return
        self._num_searches += 1
        self._is_known = True
        known = {id(model.root()) for model in self._found}
        free = [number for number, model in enumerate(self._found) if model.is_gone]
        for root in self._roots():
            if id(root) in known:
                continue
            shapes = _shapes(root)
            taken = next((number for number in free if self._found[number].shapes == shapes), None)
            if taken is not None:
                free.remove(taken)
                self._found[taken] = _Model(root, taken, shapes, is_new=True)
            elif len(self._found) < MOST_FOUND and self._num_searches == 1:
                self._found.append(_Model(root, len(self._found), shapes, is_new=False))

    def _roots(self) -> Iterator[torch.nn.Module]:
        """The outermost modules with parameters, all of which are somebody else's and get no gradient."""
        watched = set(map(id, self._parameters.values()))
        modules = live_instances(torch.nn.Module)
        inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
        for module in modules:
            if id(module) in inner or "_parameters" not in module.__dict__:
                continue
            if id(next(module.parameters(), None)) in watched:
                continue  # before all of them are listed: there may be very many
            own = list(module.parameters())
            if own and watched.isdisjoint(map(id, own)) and not [each for each in own if each.grad is not None]:
                yield module


class _Model:
    """One companion."""

    def __init__(self, root: torch.nn.Module, number: int, shapes: Sequence[object], is_new: bool) -> None:
        self.root: Callable[[], torch.nn.Module | None] = weakref.ref(root)
        self.shapes = shapes
        self._number, self._is_new = number, is_new
        self._sensitive = [weakref.ref(module) for module in root.modules() if _is_sensitive(module)]
        named = [(name, each) for name, each in root.named_parameters() if each.numel() and not each.is_meta]
        sizes = sorted([(-each.numel(), at) for at, (_, each) in enumerate(named)])
        largest = [named[at] for _, at in sizes[:MOST_WEIGHTS]]
        self._weights = [(name, weakref.ref(each)) for name, each in largest]
        self._was_called = self.is_trained = False
        self._undo: Callable[[], None] | None = None

    @property
    def is_gone(self) -> bool:
        return self.root() is None

    def trains(self) -> bool:
        """Whether it gets gradients, or ever got any."""
        if not self.is_trained:
            self.is_trained = any(
                (weight := held()) is not None and weight.grad is not None for _, held in self._weights
            )
        return self.is_trained

    def look(self, watched: Mapping[str, torch.nn.Parameter]) -> Companion:
        root = self.root()
        pairs = [(name, weight) for name, held in self._weights if (weight := held()) is not None]
        own, compared = [], []
        for name, weight in pairs:
            numbers = _elements(weight)
            own += numbers
            if (other := _same(name, weight, watched)) is not None:
                compared += list(zip(numbers, _elements(other), strict=True))
        found = Companion(
            number=self._number,
            name=type(root).__name__,
            num_active=sum(module.training for held in self._sensitive if (module := held()) is not None),
            was_called=self._was_called,
            weights=tuple(own),
            distance=_distance(compared),
            is_new=self._is_new,
        )
        self._is_new = False
        self._follow_calls(root)
        return found

    def _follow_calls(self, root: torch.nn.Module | None) -> None:
        """Note one call until the next look; no hook stays on a model that nobody asked to watch."""
        if self._undo is not None:
            self.forget()
        elif root is not None and not self._was_called and self._sensitive:
            self._undo = module_hooks.before_forward(root, self._called)

    def _called(self, *_: object) -> None:
        self._was_called = True

    def forget(self) -> None:
        """Leave no hook on it."""
        if self._undo is not None:
            self._undo()
            self._undo = None


def _is_sensitive(module: torch.nn.Module) -> bool:
    if isinstance(module, _DROPOUT):
        return module.p > 0
    return isinstance(module, _BATCH_NORM) and module.track_running_stats


def _shapes(root: torch.nn.Module) -> Sequence[object]:
    return [type(root), *[(name, tuple(each.shape)) for name, each in root.named_parameters()]]


def _elements(weight: torch.Tensor) -> list[float]:
    """A few elements; of a tensor that cannot be read without waiting, how often it was written."""
    if not weight.is_cpu or weight.layout is not torch.strided:
        return [float(weight._version)]
    part = weight.detach()
    for size in weight.shape[:-1]:
        part = part[size // 2]
    return [float(part)] if not part.dim() else [float(each) for each in part[:MOST_ELEMENTS].tolist()]


def _same(name: str, weight: torch.Tensor, watched: Mapping[str, torch.nn.Parameter]) -> torch.Tensor | None:
    """The parameter of the watched model with the same name, if both can be read."""
    short = name.removeprefix("module.")
    others = [each for found, each in watched.items() if found == short or found.endswith(f".{short}")]
    is_alike = len(others) == 1 and others[0].shape == weight.shape and others[0].is_cpu and weight.is_cpu
    return others[0] if is_alike else None


def _distance(pairs: Sequence[tuple[float, float]]) -> float:
    size = math.hypot(*(other for _, other in pairs))
    return math.hypot(*(one - other for one, other in pairs)) / size if len(pairs) > 1 and size > 0 else math.nan
