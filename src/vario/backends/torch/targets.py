"""The watched modules and parameters, by name, and where their tensors are."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from vario.backends.module_attributes import ModuleAttributes
from vario.backends.protocols.observing import Later
from vario.backends.torch import naming
from vario.backends.torch.engines import find_engine, optimizers, sharing
from vario.backends.torch.engines.base import Piece
from vario.backends.torch.loop.gradient_order import GradientOrder
from vario.backends.torch.loop.unzeroed_gradients import UnzeroedGradients
from vario.backends.torch.optimizer import learning_rates
from vario.backends.torch.optimizer import settings as switches
from vario.backends.torch.optimizer.held_tensors import HeldTensors
from vario.backends.torch.optimizer.schedulers import Schedulers
from vario.backends.torch.optimizer.target_settings import TargetSettings
from vario.backends.torch.reduce.checksums import checksum
from vario.core.errors import ModelError
from vario.core.parameter_list import ParameterList
from vario.core.records import Mesh, Share, Structure
from vario.core.selector import Choice

_PLAIN = frozenset({torch.Tensor})

log = logging.getLogger("vario")

NamedTensors = tuple[Sequence[str], list[torch.Tensor]]
"""Names, which may be the same object from step to step, and tensors."""

_watched_modules: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()


class Targets(TargetSettings):
    """What a Selector chooses from one or several models, and the engine that knows where it is kept."""

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
        self.parameter_names = selector.parameters(self.all_parameters)
        self.parameters = self.all_parameters
        if len(self.parameter_names) < len(self.all_parameters):
            self.parameters = {name: self.all_parameters[name] for name in self.parameter_names}
        try:
            self.engine = chosen_engine(self.roots, self.all_parameters, given_optimizers)
            self.shares = _each_once(self.engine.shares())
        except AttributeError as error:  # private names of a runtime change between releases
            raise ModelError(
                f"watch: the engine '{chosen_engine.name}' does not support this release of its runtime: "
                f"{error}. Please report it. Until it is fixed, try engine='plain' or train without vario."
            ) from error
        self._left_to_others: frozenset[str] = frozenset()
        self._told_of_addends = False
        self._held: weakref.WeakKeyDictionary[Any, HeldTensors] = weakref.WeakKeyDictionary()
        self._schedulers = Schedulers()
        self._attributes = ModuleAttributes(self.all_modules)

    def claim(self) -> Callable[[], None]:
        """Keep others from watching any of these modules; return a call that releases them."""
        claimed = [module for root in self.roots.values() for module in naming.unwrap(root).modules()]
        _watched_modules.update(claimed)
        return lambda: _watched_modules.difference_update(claimed)

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise if an optimizer updates none of these parameters."""
        if not self.are_updated_by(optimizer):
            raise ModelError(
                f"watch: {type(optimizer).__name__} has none of the model's parameters. Was the model replaced "
                "or copied after the optimizer was created?"
            )

    def are_updated_by(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer has any of the models' parameters."""
        return not self.engine.names.keys().isdisjoint(self.engine.parameter_ids(optimizer))

    def hold(self, models: Any) -> bool:
        """Whether these models, or parts of them, are watched here."""
        held = {id(module) for root in self.roots.values() for module in root.modules()}
        return any(id(module) in held for module in _modules_of(models))

    def structure(self) -> Structure:
        """Return modules and parameters, as in `structure.json`."""
        is_shared = naming.are_shared(self.roots, len(self.engine.names))
        names = naming.shared_names(self.roots) if is_shared else {}
        groups: list[Sequence[int]] = []
        kinds: dict[tuple[Any, ...], dict[str, Any]] = {}
        parameters = ParameterList()
        for (name, parameter), share in zip(self.all_parameters.items(), self.shares.values(), strict=True):
            shared_with = [other for other in names[id(parameter)] if other != name] if id(parameter) in names else ()
            key = (id(share), parameter.dtype, parameter.requires_grad, name if shared_with else "")
            if key not in kinds:
                kinds[key] = _kind(parameter, share, list(shared_with), groups)
            parameters.add(name, kinds[key])
        modules = naming.module_structure(self.all_modules, self._whole_size)
        return {"modules": modules, "parameters": parameters, "groups": groups, "engine": self.engine.name}

    def _whole_size(self, parameter: torch.nn.Parameter) -> int:
        """Return the elements of a whole parameter; a rank may have only a part of a sharded one, or nothing."""
        name = self.engine.names.get(id(parameter))
        return parameter.numel() if name is None else self.shares[name].size

    def leave_to_others(self, rank: int, recording: Collection[int]) -> None:
        """Set which ranks record (empty: all): of what several have, the first of them records it."""

        def is_left(replicas: Sequence[int]) -> bool:
            writers = [other for other in replicas if not recording or other in recording]
            return bool(writers) and rank in writers and writers[0] != rank

        self._left_to_others = frozenset(
            name for name, share in self.shares.items() if share.replicas and is_left(share.replicas)
        )

    @torch.no_grad()
    def unzeroed_gradients(self) -> UnzeroedGradients | None:
        """Return what follows gradients that are not zeroed; None if an engine keeps them elsewhere."""
        smallest = partial(switches.smallest, self.parameters, self.engine)
        return UnzeroedGradients(smallest) if self.engine.keeps_parameters else None

    def changed_attributes(self) -> dict[str, tuple[float, float]]:
        """Return numbers of modules that have changed since the last call (`norm.eps`): the old and the new value."""
        return self._attributes.changed()

    @property
    def mesh(self) -> Mesh:
        """The dimensions of the arrangement of ranks: their sizes, and the place of this rank."""
        return self.engine.mesh()

    @property
    def replicated(self) -> list[str]:
        """The chosen parameters that other ranks are known to have as well."""
        return [name for name in self.parameters if len(self.shares[name].replicas) > 1]

    def _records(self, name: str) -> bool:
        return name in self.parameters and name not in self._left_to_others

    def gradients(self, names: Iterable[str], replicas: bool = False) -> NamedTensors:
        """Return names and reduced gradients of the chosen ones among these; `replicas`: recorded here or not."""
        left_out = frozenset() if replicas else self._left_to_others
        found: list[tuple[str, torch.Tensor]] = []
        for name in names:
            is_wanted = name in self.parameters and name not in left_out and self.parameters[name].requires_grad
            gradient = self.engine.gradient(name) if is_wanted else None
            if type(gradient) is not torch.Tensor:
                gradient = self._reduced(name, gradient)
            if gradient is not None and gradient.numel():
                found.append((name, gradient))
        return _lists(found)

    def plain_gradients(self, replicas: bool = False, order: GradientOrder | None = None) -> NamedTensors | None:
        """Return all gradients of the chosen parameters, if they are plain tensors and this rank records them all.

        With `replicas` it need not record them.
        """
        if not self.engine.has_plain_gradients or (self._left_to_others and not replicas):
            return None
        parameters = self.parameters.values() if order is None else order.parameters
        # A parameter that was frozen keeps the gradient it had.
        gradients = [parameter.grad if parameter.requires_grad else None for parameter in parameters]
        if not _PLAIN.issuperset(map(type, gradients)) or not all(map(torch.Tensor.numel, gradients)):  # type: ignore[arg-type]
            return None
        return self.parameter_names if order is None else order.names, gradients  # type: ignore[return-value]

    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Return names and gradients as an optimizer gets them."""
        pieces = self._pieces(optimizer)
        found = ((piece, self._reduced(piece.name, piece.held.grad)) for piece in pieces)
        return _lists((piece.name, piece.cut(gradient)) for piece, gradient in found if gradient is not None)

    def optimizer_scale(self, optimizer: Any) -> torch.Tensor | None:
        """Return the scale of the gradients an optimizer gets: fused optimizers unscale them themselves."""
        scale: torch.Tensor | None = getattr(optimizer, "grad_scale", None)
        return scale

    def applied_gradient(self, piece: Piece) -> torch.Tensor | None:
        """Return one piece of a gradient as an optimizer gets it."""
        gradient = self._reduced(piece.name, piece.held.grad)
        return None if gradient is None else piece.cut(gradient)

    def sampled_pieces(self, optimizer: Any) -> list[tuple[Piece, bool]]:
        """Return all pieces of the chosen parameters in an optimizer, and whether this rank records them."""
        is_alone = self.engine.keeps_state_alone(optimizer)
        pieces = (piece for piece in self.engine.pieces(optimizer) if piece.name in self.parameters)
        return [(piece, is_alone or self._records(piece.name)) for piece in pieces]

    def _reduced(self, name: str, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """Return a gradient in the layout of its parameter; None if each rank has only a partial sum."""
        laid_out = None if gradient is None else sharing.as_held(gradient, self.all_parameters[name])
        if laid_out is None and gradient is not None and not self._told_of_addends:
            self._told_of_addends = True
            log.warning(
                "gradient of '%s' is not recorded: each rank has only a partial sum, which the optimizer reduces in "
                "its step; reducing it here would need a collective. Further cases are not reported.",
                name,
            )
        return laid_out

    def weights(self, optimizer: Any) -> NamedTensors:
        """Return names and values of the chosen parameters of an optimizer; without one, of all trainable ones."""
        if optimizer is None:
            return self._weights(lambda parameter: parameter.requires_grad)
        if (held := self._held_by(optimizer)) is not None:
            return held.names, held.tensors
        return _lists((piece.name, piece.cut(piece.held)) for piece in self._pieces(optimizer))

    def _held_by(self, optimizer: Any) -> HeldTensors | None:
        """Return the recorded parameters of an optimizer, if the engine leaves them as they are; mostly a look-up."""
        if not self.engine.has_plain_gradients:
            return None
        numbers = self.engine.parameter_ids(optimizer)
        known = self._held.get(optimizer)
        if known is None or known.numbers is not numbers:
            names, tensors = _lists((piece.name, piece.held) for piece in self._pieces(optimizer))
            known = self._held[optimizer] = HeldTensors(numbers, tuple(names), tensors)
        return known

    def frozen_weights(self) -> NamedTensors:
        """Return names and values of the chosen parameters that require no gradient."""
        return self._weights(lambda parameter: not parameter.requires_grad)

    def _weights(self, is_wanted: Callable[[torch.nn.Parameter], bool]) -> NamedTensors:
        names = [name for name, parameter in self.parameters.items() if is_wanted(parameter) and self._records(name)]
        weights = ((name, self.engine.weight(name)) for name in names)
        return _lists((name, weight) for name, weight in weights if weight.numel())

    def moments(self, optimizer: Any) -> NamedTensors:
        """Return names (`weight:exp_avg`) and values of every tensor of an optimizer's state."""
        if optimizer is None:
            return [], []
        if not self.engine.keeps_state_alone(optimizer) and (held := self._held_by(optimizer)) is not None:
            return held.moments(optimizer.state)
        return _lists(
            (f"{piece.name}:{key}", tensor)
            for piece in self.pieces_with_state(optimizer)
            for key, tensor in optimizers.state_tensors(optimizer, piece)
        )

    def learning_rates(self, optimizer: Any) -> Later:
        """Return the current learning rate of each of an optimizer's groups; NaN if a group has none."""
        return learning_rates.learning_rates(optimizer.param_groups)

    def initial_rate(self, optimizer: Any) -> float | None:
        """Return the rate that a scheduler of an optimizer's first group starts from; None if it has none."""
        return learning_rates.initial_rate(optimizer.param_groups)

    def is_scheduled(self, optimizer: Any) -> bool | None:
        """Whether one of torch's schedulers set these rates; None if they have not changed, or it is unknown."""
        return self._schedulers.agree(optimizer)

    def gradient_checksums(self, optimizer: Any) -> NamedTensors:
        """Return names (`weight:gradient`) and checksums of the gradients that other ranks have as well."""
        found = ((name, self._reduced(name, self.engine.gradient(name))) for name in self._replicated_of(optimizer))
        return _checksums("gradient", ((name, gradient) for name, gradient in found if gradient is not None))

    def weight_checksums(self, optimizer: Any) -> NamedTensors:
        """Return names (`weight:weight`) and checksums of the weights that other ranks have as well."""
        names = self._replicated_of(optimizer)
        return _checksums("weight", ((name, self.engine.weight(name)) for name in names))

    def _replicated_of(self, optimizer: Any) -> list[str]:
        if optimizer is None:
            return self.replicated
        held = {piece.name for piece in self.engine.pieces(optimizer)}
        return [name for name in self.replicated if name in held]

    def _pieces(self, optimizer: Any) -> Iterator[Piece]:
        return (piece for piece in self.engine.pieces(optimizer) if self._records(piece.name))

    def pieces_with_state(self, optimizer: Any) -> Iterator[Piece]:
        """Yield an optimizer's pieces of the chosen parameters whose state this rank records."""
        if not self.engine.keeps_state_alone(optimizer):
            return self._pieces(optimizer)
        return (piece for piece in self.engine.pieces(optimizer) if piece.name in self.parameters)

    def device_scalars(self) -> dict[str, float]:
        """Return the memory in use on the model's CUDA devices, in bytes."""
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
    """Whether a Monitor already watches this model, or a part of it."""
    return any(module in _watched_modules for module in model.modules())


def _check(model: Any) -> None:
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"watch: expected a torch.nn.Module, got {type(model).__name__}")
    bare = naming.unwrap(model)
    name = type(bare).__name__
    if next(bare.parameters(), None) is None:
        raise ModelError(f"watch: {name} has no parameters, so there is nothing to train or watch")
    if is_watched(bare):
        raise ModelError(f"watch: {name}, or a part of it, is already being watched. Close that Monitor first.")


def _check_shapes(roots: Mapping[str, torch.nn.Module], parameters: Mapping[str, torch.nn.Parameter]) -> None:
    one_of_each = {type(parameter): parameter for parameter in parameters.values()}
    if not any(map(torch.nn.parameter.is_lazy, one_of_each.values())):
        return
    for model in map(naming.unwrap, roots.values()):
        lazy = [name for name, parameter in model.named_parameters() if torch.nn.parameter.is_lazy(parameter)]
        if lazy:
            where = f"'{lazy[0]}' of {type(model).__name__}"
            raise ModelError(f"watch: {where} has no shape yet. Run the model once with a batch first.")


def _as_models(models: Any) -> dict[str, Any]:
    if isinstance(models, torch.nn.Module) or not isinstance(models, (Mapping, Sequence)):
        return {"": models}
    named = models.items() if isinstance(models, Mapping) else enumerate(models)
    return {f"{name}.": model for name, model in named}


def _each_once(shares: dict[str, Share]) -> dict[str, Share]:
    """Return the same shares, with equal ones as one object."""
    known: dict[Share, Share] = {}
    once = {number: known.setdefault(share, share) for number, share in {id(s): s for s in shares.values()}.items()}
    if len(known) < len(once):
        return {name: once[id(share)] for name, share in shares.items()}
    return shares


def _kind(
    parameter: torch.nn.Parameter, share: Share, shared_with: list[str], groups: list[Sequence[int]]
) -> dict[str, Any]:
    """Return the entry of a parameter in `structure.json` without its name; add ranks that share it to `groups`."""
    layout = share.to_json()
    if share.replicas:
        # With thousands of ranks the list is long: it is stored once, and parameters refer to its index.
        if share.replicas not in groups:
            groups.append(share.replicas)
        layout["replicas"] = groups.index(share.replicas)
    described = {
        "shape": None,
        "dtype": naming.dtype_name(parameter.dtype),
        "trainable": parameter.requires_grad,
        "shared_with": shared_with,
    }
    return {**described, **layout}


def _checksums(quantity: str, tensors: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    sums = ((f"{name}:{quantity}", checksum(tensor)) for name, tensor in tensors)
    return _lists((name, value) for name, value in sums if value is not None)


def _lists(pairs: Iterable[tuple[str, torch.Tensor]]) -> NamedTensors:
    found = list(pairs)
    return [name for name, _ in found], [tensor for _, tensor in found]
