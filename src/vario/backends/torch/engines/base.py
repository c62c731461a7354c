"""What every engine provides: where gradients accumulate, what this rank has, and which ranks have the same.

The defaults here are those of plain torch: gradients in `parameter.grad`, weights in the parameters themselves, state
in `optimizer.state[parameter]`, everything on every rank. An engine overrides what its runtime does differently.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, Protocol

import torch

from vario.backends.protocols.events import Undo
from vario.backends.torch.engines import optimizers, sharing
from vario.core.records import Mesh, Share


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A tensor that backward accumulates into, and the parameters inside it, each with its range of elements."""

    tensor: torch.Tensor
    parts: Sequence[tuple[str, slice | None]]
    """None: the parameter is the whole tensor."""
    is_internal: bool = False
    """Whether it is internal to the runtime, so that nothing calls `torch.autograd.grad` for its gradient."""


@dataclass(frozen=True, slots=True)
class Piece:
    """An optimizer's part of one parameter on this rank."""

    name: str
    held: torch.Tensor
    """The tensor in the optimizer's `param_groups`."""
    group: Mapping[str, Any]
    part: slice | None = None
    """The parameter's elements within a flat `held` that has several; None: all of it."""

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this piece of a tensor with the layout of `held`: its gradient, its state, itself."""
        if self.part is None:
            return tensor
        return tensor.detach().reshape(-1)[self.part].requires_grad_(tensor.requires_grad)


class HeldParameters:
    """The parameters of an optimizer at the last check."""

    def __init__(self, lists: Sequence[Sequence[torch.Tensor]], names: Mapping[int, str]) -> None:
        self._lists = [list(held) for held in lists]
        numbers = frozenset(map(id, chain.from_iterable(self._lists)))
        # Usually that is the whole model, whose identities are known already.
        self.numbers: frozenset[int] = frozenset(names) if numbers == names.keys() else numbers

    def are(self, lists: Sequence[Sequence[torch.Tensor]]) -> bool:
        """Whether these are the same, element by element."""
        return len(lists) == len(self._lists) and all(
            len(held) == len(known) and all(map(operator.is_, held, known))
            for held, known in zip(lists, self._lists, strict=True)
        )


class Loop(Protocol):
    """What an engine reports to the training loop."""

    def look_for_accumulators(self) -> None:
        """More of them may be visible now."""

    def gradients_are_reduced(self) -> None:
        """Report that gradients are reduced, by an engine that reduces after backward; nothing is clipped yet."""

    def update_was_skipped(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Report that the runtime has discarded the gradients of this step: those of one optimizer, or of all."""


class Engine:
    """Where one runtime keeps things. Created once per Monitor."""

    name: ClassVar[str]
    precedence: ClassVar[int] = 0
    reduces_in_backward: ClassVar[bool] = True
    """Whether gradients are reduced when autograd's backward returns; otherwise the engine reports when they are."""
    has_plain_gradients: ClassVar[bool] = False
    """Whether the gradients of a rank are the whole `.grad` of its parameters."""
    keeps_parameters: ClassVar[bool] = False
    """Whether the model's parameters stay the same objects: an engine that shards replaces them."""
    keeps_local_sum: bool = True
    """Whether micro-steps accumulate on each rank before ranks reduce them; otherwise each is reduced separately."""

    clips_in_step: ClassVar[bool] = False
    """Whether the runtime's own `step` clips gradients: a loop that calls it sees them unclipped."""
    calls_are_passes: ClassVar[bool] = False
    """Whether each call of an outermost module is a micro-step, also while earlier ones wait for their backward."""

    def __init__(
        self,
        roots: Mapping[str, torch.nn.Module],
        parameters: Mapping[str, torch.nn.Parameter],
        given_optimizers: Sequence[Any],
    ) -> None:
        self.roots = roots
        self.parameters = parameters
        self.given_optimizers = given_optimizers
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        """Names of the parameters, by identity."""
        self._held_by: weakref.WeakKeyDictionary[torch.optim.Optimizer, HeldParameters] = weakref.WeakKeyDictionary()
        self.prepare()

    def prepare(self) -> None:
        """Inspect the models once, for what the engine needs."""

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether this engine trains these models."""
        raise NotImplementedError

    @classmethod
    def check(cls, roots: Mapping[str, torch.nn.Module]) -> None:
        """Raise ModelError for models that this engine cannot follow."""

    @classmethod
    def trained_elsewhere(cls) -> Iterable[int]:
        """Return the parameters of live models that optimizers update through their own copies, by identity."""
        return ()

    def torch_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the torch optimizers inside those given."""
        return [optimizers.innermost(optimizer) for optimizer in self.given_optimizers]

    def attach(self, loop: Loop) -> Undo:
        """Follow what the runtime does between the events that every torch loop has."""
        return lambda: None

    # Gradients

    def accumulators(self, wanted: Collection[str]) -> Iterator[Accumulator]:
        """Yield the tensors that accumulate gradients of these parameters, if they exist so far."""
        for name in wanted:
            parameter = self.parameters[name]
            if parameter.requires_grad:
                yield Accumulator(parameter, ((name, None),))

    def check_local(self, accumulator: torch.Tensor) -> None:
        """Raise ModelError if what autograd has just computed for a tensor is not its gradient."""

    def accumulated(self, accumulator: torch.Tensor) -> torch.Tensor | None:
        """Return the sum over this rank's micro-steps so far, when backward has just added to it."""
        return accumulator.grad

    def gradient(self, name: str) -> torch.Tensor | None:
        """Return this rank's piece of a reduced gradient, not yet clipped."""
        return self.parameters[name].grad

    def loss_scale(self) -> torch.Tensor | None:
        """Return what the runtime multiplies the loss by, if it does."""
        return None

    # The optimizer's parameters

    def pieces(self, optimizer: torch.optim.Optimizer) -> Iterator[Piece]:
        """Yield the current pieces in an optimizer's `param_groups`, by parameter."""
        for group in optimizer.param_groups:
            for held in group["params"]:
                name = self.names.get(id(held))
                if name is not None and held.numel():
                    yield Piece(name, held, group)

    def parameter_ids(self, optimizer: torch.optim.Optimizer) -> Iterable[int]:
        """Return the model's parameters that an optimizer updates, on any rank, by identity."""
        lists = [group["params"] for group in optimizer.param_groups]
        if not self.keeps_parameters:
            return list(map(id, chain.from_iterable(lists)))
        known = self._held_by.get(optimizer)
        if known is None or not known.are(lists):
            known = self._held_by[optimizer] = HeldParameters(lists, self.names)
        return known.numbers

    def keeps_state_alone(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether no other rank has the state of this optimizer, even if it has the same parameters."""
        return False

    def weight(self, name: str) -> torch.Tensor:
        """Return this rank's part of a parameter, in the highest precision available."""
        return self.parameters[name]

    # Ranks with the same parts

    def share(self, name: str) -> Share:
        """Return which part of a parameter this rank has, and which ranks have the same."""
        parameter = self.parameters[name]
        return sharing.of_dtensor(parameter) or Share(tuple(parameter.shape))

    def shares(self) -> dict[str, Share]:
        """Return the shares of all parameters."""
        return {name: self.share(name) for name in self.parameters}

    def mesh(self) -> Mesh:
        """Return the dimensions of the arrangement of ranks, with sizes and this rank's place, if known."""
        return sharing.mesh_of(self.parameters.values())
