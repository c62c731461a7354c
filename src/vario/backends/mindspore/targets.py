"""The watched cells and parameters, by name."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from mindspore import Parameter, nn
from mindspore.train import Model

from vario.backends.mindspore.tensors import dtype_name, size
from vario.core.errors import ModelError
from vario.core.records import ROOT, Structure
from vario.core.selector import Choice

_INSIDE = {"TrainOneStepCell": "network", "TrainOneStepWithLossScaleCell": "network", "WithLossCell": "_backbone"}
"""Cells that MindSpore wraps around a network, and where they keep it."""

_watched: weakref.WeakSet[Any] = weakref.WeakSet()


class Targets:
    """What a Selector chooses from one or several cells."""

    def __init__(self, models: Any, selector: Choice) -> None:
        self.roots = as_roots(models)
        for root in self.roots.values():
            _check(root)
        self.all_cells = dict(_named_cells(self.roots))
        self.all_parameters = dict(_named_parameters(self.roots))
        selector.check(list(self.all_cells), list(self.all_parameters))
        self.cells = {name: self.all_cells[name] for name in selector.modules(self.all_cells)}
        self.names = selector.parameters(self.all_parameters)
        self._chosen = frozenset(self.names)
        self.name_of = {id(parameter): name for name, parameter in self.all_parameters.items()}
        self.number_of = {key: number for number, key in enumerate(self.name_of)}

    def claim(self) -> Callable[[], None]:
        """Keep others from watching any of these cells; return a call that releases them."""
        cells = list(self.all_cells.values())
        _watched.update(cells)
        return lambda: _watched.difference_update(cells)

    def hold(self, models: Any) -> bool:
        """Whether these models, or parts of them, are watched here."""
        own = {id(cell) for cell in self.all_cells.values()}
        return any(id(cell) in own for root in as_roots(models).values() for cell in _cells_of(root))

    def is_chosen(self, name: str) -> bool:
        """Whether a parameter is recorded."""
        return name in self._chosen

    def parameters_of(self, optimizer: Any) -> list[tuple[int, str, Any]]:
        """Return the chosen parameters of an optimizer: the place of each in its list, its name and itself."""
        found = []
        for place, parameter in enumerate(optimizer.parameters):
            name = self.name_of.get(id(parameter))
            if name is not None and name in self._chosen:
                found.append((place, name, parameter))
        return found

    def numbers_of(self, parameters: Iterable[Any]) -> list[int]:
        """Return the numbers by which the clock knows these parameters; others are left out."""
        numbers = (self.number_of.get(id(parameter)) for parameter in parameters)
        return [number for number in numbers if number is not None]

    def are_updated_by(self, optimizer: Any) -> bool:
        """Whether an optimizer has any of these parameters."""
        return bool(self.numbers_of(optimizer.parameters))

    def named(self, parameters: Sequence[Any], tensors: Sequence[Any]) -> tuple[list[str], list[Any]]:
        """Return names and tensors, such as gradients, of the chosen ones among these parameters."""
        pairs = [(self.name_of.get(id(one)), tensor) for one, tensor in zip(parameters, tensors, strict=True)]
        kept = [(name, tensor) for name, tensor in pairs if name in self._chosen]
        return [name for name, _ in kept if name is not None], [tensor for _, tensor in kept]

    def values(self, is_wanted: Callable[[Any], bool]) -> tuple[list[str], list[Any]]:
        """Return names and values of the chosen parameters that are wanted."""
        names = [name for name in self.names if is_wanted(self.all_parameters[name])]
        return names, [self.all_parameters[name] for name in names]

    def unknown_parameters(self) -> list[str]:
        """Return the names of parameters added after `vario.watch`."""
        return [name for name, one in _named_parameters(self.roots) if id(one) not in self.name_of]

    def structure(self, engine: str, replicas: Sequence[int] = ()) -> Structure:
        """Return cells and parameters, as in `structure.json`; `replicas`: ranks that have all parameters alike."""
        modules = [
            {"name": name, "class": type(cell).__name__, "num_parameters": sum(map(size, _own_parameters(cell)))}
            for name, cell in self.all_cells.items()
        ]
        share = {"replicas": 0} if replicas else {}
        parameters = [
            {
                "name": name,
                "shape": list(parameter.shape),
                "dtype": dtype_name(parameter.dtype),
                "trainable": bool(parameter.requires_grad),
                "shared_with": [],
                **share,
            }
            for name, parameter in self.all_parameters.items()
        ]
        groups = [list(replicas)] if replicas else []
        return {"modules": modules, "parameters": parameters, "groups": groups, "engine": engine}


def is_watched(model: Any) -> bool:
    """Whether a Monitor already watches this model, or a part of it."""
    return any(cell in _watched for root in as_roots(model).values() for cell in _cells_of(root))


def as_roots(models: Any) -> dict[str, Any]:
    """Return the networks by the prefix of their names, without the cells that MindSpore wraps around them."""
    if isinstance(models, (nn.Cell, Model)) or not isinstance(models, (Mapping, Sequence)):
        return {"": unwrap(models)}
    named = models.items() if isinstance(models, Mapping) else enumerate(models)
    return {f"{name}.": unwrap(model) for name, model in named}


def unwrap(model: Any) -> Any:
    """Return the network inside a `mindspore.train.Model`, a training cell or a cell with a loss."""
    if isinstance(model, Model):
        model = model._network
    for _ in range(4):
        inside = next((_INSIDE[cls.__name__] for cls in type(model).__mro__ if cls.__name__ in _INSIDE), None)
        if inside is None or not isinstance(getattr(model, inside, None), nn.Cell):
            break
        model = getattr(model, inside)
    return model


def optimizer_inside(model: Any) -> Any:
    """Return the optimizer that a `mindspore.train.Model` or a training cell has; None if it has none."""
    found = getattr(model, "_optimizer" if isinstance(model, Model) else "optimizer", None)
    return found if isinstance(found, nn.Cell) and hasattr(found, "parameters") else None


def _named_cells(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for prefix, root in roots.items():
        for name, cell in root.cells_and_names():
            yield prefix + (name or ROOT), cell


def _named_parameters(roots: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """One that models share has its name in the first of them."""
    seen: set[int] = set()
    for prefix, root in roots.items():
        for name, parameter in root.parameters_and_names():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix + name, parameter


def _cells_of(root: Any) -> list[Any]:
    return [cell for _, cell in root.cells_and_names()] if isinstance(root, nn.Cell) else []


def _own_parameters(cell: Any) -> list[Any]:
    return [parameter for parameter in cell._params.values() if isinstance(parameter, Parameter)]


def _check(model: Any) -> None:
    if not isinstance(model, nn.Cell):
        raise ModelError(f"watch: expected a mindspore.nn.Cell, got {type(model).__name__}")
    name = type(model).__name__
    if next(iter(model.get_parameters()), None) is None:
        raise ModelError(f"watch: {name} has no parameters, so there is nothing to train or watch")
    if is_watched(model):
        raise ModelError(f"watch: {name}, or a part of it, is already being watched. Close that Monitor first.")
