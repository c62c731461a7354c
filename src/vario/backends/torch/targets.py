"""The modules and parameters under watch, by name, and where their tensors are."""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from vario.backends.torch import naming
from vario.backends.torch.engines import find_engine, optimizers, sharing
from vario.backends.torch.engines.base import Piece
from vario.backends.torch.loop.unzeroed_gradients import LeftOverGradients
from vario.backends.torch.optimizer import update_direction
from vario.backends.torch.optimizer.settings import modules_in_eval, settings, unknown_parameters
from vario.backends.torch.reduce.checksums import checksum
from vario.core.errors import ModelError
from vario.core.records import Share, Structure
from vario.core.selector import Choice
from vario.statistics import Values

log = logging.getLogger("vario")

NamedTensors = tuple[list[str], list[torch.Tensor]]

_NONE: list[str] = []

_watched_modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class Targets:
    """What a Selector chooses of one or several models, and the engine that knows where it is kept."""

    def __init__(
        self, models: Any, selector: Choice, given_optimizers: Sequence[Any] = (), engine: str | None = None
    ) -> None:
        self.roots = _as_models(models)
        chosen_engine = find_engine(self.roots, given_optimizers, engine)
        chosen_engine.check(self.roots)
        for model in self.roots.values():
            _check(model)
        self.all_modules = modules = naming.all_modules(self.roots)
        self.all_parameters = naming.all_parameters(self.roots)
        _check_shapes(self.roots, self.all_parameters)
        selector.check(list(modules), list(self.all_parameters))
        self.modules = {name: modules[name] for name in selector.modules(modules)}
        self.parameters = {name: self.all_parameters[name] for name in selector.parameters(self.all_parameters)}
        try:
            self.engine = chosen_engine(self.roots, self.all_parameters, given_optimizers)
            known: dict[Share, Share] = {}
            shares = ((name, self.engine.share(name)) for name in self.all_parameters)
            self.shares = {name: known.setdefault(share, share) for name, share in shares}
        except AttributeError as error:  # what a runtime keeps to itself has another name in another release
            raise ModelError(
                f"watch: the engine '{chosen_engine.name}' does not know its way in this release of its runtime: "
                f"{error}. Please report it. Until then train without watching, or try engine='plain'."
            ) from error
        self._left_to_others: frozenset[str] = frozenset()
        self._told_of_addends = False

    def claim(self) -> Callable[[], None]:
        """Keep others from watching any of these modules; the result gives them back."""
        claimed = [module for root in self.roots.values() for module in naming.unwrap(root).modules()]
        _watched_modules.update(claimed)
        return lambda: _watched_modules.difference_update(claimed)

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Refuse an optimizer that updates nothing of this."""
        if not self.are_updated_by(optimizer):
            raise ModelError(
                f"watch: {type(optimizer).__name__} holds none of the model's parameters. Was the model replaced "
                "or moved to another copy after the optimizer was made?"
            )

    def are_updated_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer holds any of the models' parameters."""
        return not self.engine.names.keys().isdisjoint(self.engine.parameter_ids(optimizer))

    def hold(self, models: Any) -> bool:
        """Whether these models, or parts of them, are among them."""
        held = {id(module) for root in self.roots.values() for module in root.modules()}
        return any(id(module) in held for module in _modules_of(models))

    def structure(self) -> Structure:
        """Modules and parameters, as `structure.json` holds them."""
        is_shared = naming.are_shared(self.roots, len(self.engine.names))
        names = naming.shared_names(self.roots) if is_shared else {}
        groups: list[Sequence[int]] = []
        layouts: dict[Share, dict[str, Any]] = {}
        parameters: list[dict[str, Any]] = []
        for name, parameter in self.all_parameters.items():
            share = self.shares[name]
            if share not in layouts:
                layouts[share] = share.to_json()
                if share.replicas:
                    # Of thousands of ranks the list is long: it stands once, and parameters name its place.
                    if share.replicas not in groups:
                        groups.append(share.replicas)
                    layouts[share]["replicas"] = groups.index(share.replicas)
            described = {
                "name": name,
                "shape": None,
                "dtype": naming.dtype_name(parameter.dtype),
                "trainable": parameter.requires_grad,
                "shared_with": [other for other in names.get(id(parameter), ()) if other != name] or _NONE,
            }
            parameters.append({**described, **layouts[share]})
        # Of a sharded parameter a rank has a part, or nothing at this moment: what counts is the whole.
        sizes = {id(self.all_parameters[name]): math.prod(share.shape) for name, share in self.shares.items()}
        modules = naming.module_structure(self.all_modules, sizes)
        return {"modules": modules, "parameters": parameters, "groups": groups, "engine": self.engine.name}

    def leave_to_others(self, rank: int, recording: Collection[int]) -> None:
        """Say which ranks record (empty: all): of what is the same on several, the first of them records it."""

        def is_left(replicas: Sequence[int]) -> bool:
            writers = [other for other in replicas if not recording or other in recording]
            return bool(writers) and rank in writers and writers[0] != rank

        self._left_to_others = frozenset(name for name, share in self.shares.items() if is_left(share.replicas))

    def settings(self, optimizer: Any) -> dict[str, float]:
        """What is trained, and how, as numbers that stay the same in ordinary training."""
        groups = getattr(optimizer, "param_groups", None) or []
        return settings(self.all_modules, self.all_parameters, groups)

    @torch.no_grad()
    def left_over_gradients(self) -> LeftOverGradients | None:
        """Follows gradients that nobody zeroes; None where an engine keeps them elsewhere."""
        return LeftOverGradients(self._smallest_of) if self.engine.keeps_parameters else None

    def _smallest_of(self, optimizer: torch.optim.Optimizer | None) -> torch.Tensor | None:
        """The smallest parameter that an optimizer trains; None of all of them."""
        held = None if optimizer is None else set(self.engine.parameter_ids(optimizer))
        trained = [
            parameter
            for parameter in self.parameters.values()
            if parameter.requires_grad and parameter.numel() and (held is None or id(parameter) in held)
        ]
        return min(trained, key=lambda parameter: parameter.numel(), default=None)

    def modules_in_eval(self) -> list[str]:
        """Names of the modules that are in evaluation mode."""
        return modules_in_eval(self.all_modules)

    def unknown_parameters(self) -> list[str]:
        """Names of parameters that came into the model after it was watched; where parameters stay what they are."""
        if not self.engine.keeps_parameters:
            return []
        return unknown_parameters((naming.unwrap(root) for root in self.roots.values()), self.engine.names)

    @property
    def replicated(self) -> list[str]:
        """The chosen parameters that other ranks are known to hold as well."""
        return [name for name in self.parameters if len(self.shares[name].replicas) > 1]

    def _records(self, name: str) -> bool:
        return name in self.parameters and name not in self._left_to_others

    def gradients(self, names: Iterable[str], replicas: bool = False) -> NamedTensors:
        """Names and reduced gradients of those parameters that are chosen and have one; `replicas`: recorded or not."""
        left_out = frozenset() if replicas else self._left_to_others
        found: NamedTensors = [], []
        for name in names:
            gradient = self.engine.gradient(name) if name in self.parameters and name not in left_out else None
            if type(gradient) is not torch.Tensor:
                gradient = self._reduced(name, gradient)
            if gradient is not None and gradient.numel():
                found[0].append(name)
                found[1].append(gradient)
        return found

    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Names and gradients as an optimizer gets them."""
        pieces = self._pieces(optimizer)
        found = ((piece, self._reduced(piece.name, piece.held.grad)) for piece in pieces)
        return _lists((piece.name, piece.cut(gradient)) for piece, gradient in found if gradient is not None)

    def applied_gradient(self, piece: Piece) -> torch.Tensor | None:
        """One piece of a gradient as an optimizer gets it."""
        gradient = self._reduced(piece.name, piece.held.grad)
        return None if gradient is None else piece.cut(gradient)

    def sampled_pieces(self, optimizer: Any) -> list[tuple[Piece, bool]]:
        """All that an optimizer holds of the chosen parameters, and whether this rank is the one to record it."""
        is_alone = self.engine.keeps_state_alone(optimizer)
        pieces = (piece for piece in self.engine.pieces(optimizer) if piece.name in self.parameters)
        return [(piece, is_alone or self._records(piece.name)) for piece in pieces]

    def _reduced(self, name: str, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """A gradient laid out as the layout says of its parameter; None where that is nowhere yet."""
        laid_out = None if gradient is None else sharing.as_held(gradient, self.all_parameters[name])
        if laid_out is None and gradient is not None and not self._told_of_addends:
            self._told_of_addends = True
            log.warning(
                "gradient of '%s' is not recorded: each rank has an addend of it, which the optimizer adds up inside "
                "its step; to add them up here would be a collective. Others like it are passed over silently.",
                name,
            )
        return laid_out

    def weights(self, optimizer: Any) -> NamedTensors:
        """Names and values of the chosen parameters an optimizer holds; of all trainable ones without an optimizer."""
        if optimizer is None:
            return self._weights(lambda parameter: parameter.requires_grad)
        return _lists((piece.name, piece.cut(piece.held)) for piece in self._pieces(optimizer))

    def frozen_weights(self) -> NamedTensors:
        """Names and values of the chosen parameters that need no gradient."""
        return self._weights(lambda parameter: not parameter.requires_grad)

    def _weights(self, is_wanted: Callable[[torch.nn.Parameter], bool]) -> NamedTensors:
        names = [name for name, parameter in self.parameters.items() if is_wanted(parameter) and self._records(name)]
        weights = ((name, self.engine.weight(name)) for name in names)
        return _lists((name, weight) for name, weight in weights if weight.numel())

    def moments(self, optimizer: Any) -> NamedTensors:
        """Names (`weight:exp_avg`) and values of every tensor of an optimizer's state."""
        if optimizer is None:
            return [], []
        return _lists(
            (f"{piece.name}:{key}", tensor)
            for piece in self._pieces_with_state(optimizer)
            for key, tensor in optimizers.state_tensors(optimizer, piece)
        )

    def gradient_checksums(self, optimizer: Any) -> NamedTensors:
        """Names (`weight:gradient`) and checksums of the gradients that other ranks have as well."""
        found = ((name, self._reduced(name, self.engine.gradient(name))) for name in self._replicated_of(optimizer))
        return _checksums("gradient", ((name, gradient) for name, gradient in found if gradient is not None))

    def weight_checksums(self, optimizer: Any) -> NamedTensors:
        """Names (`weight:weight`) and checksums of the weights that other ranks hold as well."""
        names = self._replicated_of(optimizer)
        return _checksums("weight", ((name, self.engine.weight(name)) for name in names))

    def _replicated_of(self, optimizer: Any) -> list[str]:
        if optimizer is None:
            return self.replicated
        held = {piece.name for piece in self.engine.pieces(optimizer)}
        return [name for name in self.replicated if name in held]

    def _pieces(self, optimizer: Any) -> Iterator[Piece]:
        return (piece for piece in self.engine.pieces(optimizer) if self._records(piece.name))

    def _pieces_with_state(self, optimizer: Any) -> Iterator[Piece]:
        if not self.engine.keeps_state_alone(optimizer):
            return self._pieces(optimizer)
        return (piece for piece in self.engine.pieces(optimizer) if piece.name in self.parameters)

    def sign_agreement(self, optimizer: Any) -> NamedTensors:
        """Names and the share of elements whose gradient points where the momentum does."""
        return (
            ([], [])
            if optimizer is None
            else update_direction.sign_agreement(optimizer, self._pieces_with_state(optimizer))
        )

    def update_histograms(
        self, optimizer: Any, bins: int, low: float, high: float
    ) -> tuple[list[str], Callable[[], Values]]:
        """Names, and histograms of Adam's update and ratio that wait for the device."""
        if optimizer is None:
            return [], lambda: np.empty((0, bins))
        return update_direction.update_histograms(optimizer, self._pieces_with_state(optimizer), bins, low, high)

    def device_scalars(self) -> dict[str, float]:
        """Memory in use on the model's CUDA devices, in bytes."""
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            return {}
        devices = {parameter.device for parameter in self.parameters.values() if parameter.device.type == "cuda"}
        scalars: dict[str, float] = {}
        for device in sorted(devices, key=str):
            stats = torch.cuda.memory_stats_as_nested_dict(device)
            suffix = "" if len(devices) == 1 else f"_{device.index}"
            scalars[f"device_memory_bytes{suffix}"] = stats["allocated_bytes"]["all"]["current"]
            scalars[f"device_memory_peak_bytes{suffix}"] = stats["allocated_bytes"]["all"]["peak"]
            scalars[f"device_memory_reserved_bytes{suffix}"] = stats["reserved_bytes"]["all"]["current"]
        return scalars


def _modules_of(models: Any) -> Iterator[torch.nn.Module]:
    for model in _as_models(models).values():
        if isinstance(model, torch.nn.Module):
            yield from model.modules()


def is_watched(model: torch.nn.Module) -> bool:
    """Whether a Monitor has this model, or a part of it, already."""
    return any(module in _watched_modules for module in model.modules())


def _check(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"watch: expected a torch.nn.Module, got {type(model).__name__}")
    bare = naming.unwrap(model)
    name = type(bare).__name__
    if next(bare.parameters(), None) is None:
        raise ModelError(f"watch: {name} has no parameters, so there is nothing to train or to watch")
    if is_watched(bare):
        raise ModelError(f"watch: {name}, or a part of it, is watched already. Close that Monitor first.")


def _check_shapes(roots: Mapping[str, torch.nn.Module], parameters: Mapping[str, torch.nn.Parameter]) -> None:
    if not any(map(torch.nn.parameter.is_lazy, parameters.values())):
        return
    for model in map(naming.unwrap, roots.values()):
        lazy = [name for name, parameter in model.named_parameters() if torch.nn.parameter.is_lazy(parameter)]
        if lazy:
            where = f"'{lazy[0]}' of {type(model).__name__}"
            raise ModelError(f"watch: {where} has no shape yet. Call the model once with a batch before.")


def _as_models(models: Any) -> dict[str, Any]:
    if isinstance(models, torch.nn.Module) or not isinstance(models, (Mapping, Sequence)):
        return {"": models}
    named = models.items() if isinstance(models, Mapping) else enumerate(models)
    return {f"{name}.": model for name, model in named}


def _checksums(quantity: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    sums = ((f"{name}:{quantity}", checksum(tensor)) for name, tensor in tensors)
    return _lists((name, value) for name, value in sums if value is not None)


def _lists(pairs: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    found = list(pairs)
    return [name for name, _ in found], [tensor for _, tensor in found]
