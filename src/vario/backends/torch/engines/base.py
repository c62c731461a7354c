"""What every engine answers: where gradients accumulate, what this rank holds, and who else holds the same.

The answers given here are those of plain torch: gradients in `parameter.grad`, weights in the parameters themselves,
state in `optimizer.state[parameter]`, everything on every rank. An engine overrides what its runtime does otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from vario.backends.base import Undo
from vario.backends.torch.engines import optimizers, sharing
from vario.core.records import Mesh, Share


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A tensor that backward accumulates into, and the parameters that lie in it, each with its range of elements."""

    tensor: torch.Tensor
    parts: Sequence[tuple[str, slice | None]]
    """None: the parameter is the whole tensor."""
    is_internal: bool = False
    """Whether it is the runtime's own, so that nobody asks `torch.autograd.grad` for its gradient."""


@dataclass(frozen=True, slots=True)
class Piece:
    """What an optimizer holds of one parameter on this rank."""

    name: str
    held: torch.Tensor
    """The tensor in the optimizer's `param_groups`."""
    group: Mapping[str, Any]
    part: slice | None = None
    """The parameter's elements within a flat `held` that has several; None: all of it."""

    def cut(self, tensor: torch.Tensor) -> torch.Tensor:
        """This piece of a tensor laid out as `held` is: its gradient, its state, itself."""
        if self.part is None:
            return tensor
        return tensor.detach().reshape(-1)[self.part].requires_grad_(tensor.requires_grad)


class Loop(Protocol):
    """What an engine tells the training loop that is followed."""

    def look_for_accumulators(self) -> None:
        """More of them may be visible now."""

    def gradients_are_reduced(self) -> None:
        """An engine that reduces after backward has done so; nothing is clipped yet."""

    def update_was_skipped(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """The runtime has thrown the gradients of this step away: those of one optimizer, or of all."""


class Engine:
    """Where one runtime keeps things. Made once per Monitor."""

    name: ClassVar[str]
    precedence: ClassVar[int] = 0
    reduces_in_backward: ClassVar[bool] = True
    """Whether gradients are reduced when autograd's backward returns; else the engine says when they are."""
    keeps_parameters: ClassVar[bool] = False
    """Whether the model's parameters stay the objects they were: an engine that shards swaps them for others."""
    keeps_local_sum: bool = True
    """Whether micro-steps add up on each rank before ranks share them; else each is shared by itself."""

    clips_in_step: ClassVar[bool] = False
    """Whether the runtime's own `step` clips gradients: a loop that calls it sees those that are not."""
    calls_are_passes: ClassVar[bool] = False
    """Whether each call of an outermost module is a micro-step, also while those before wait for their backward."""

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
        """Of the parameters, by identity."""
        self.prepare()

    def prepare(self) -> None:
        """Look at the models once, for what an engine has to know of them."""

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether these models are driven by this engine."""
        raise NotImplementedError

    @classmethod
    def check(cls, roots: Mapping[str, torch.nn.Module]) -> None:
        """Refuse, by a ModelError, what this engine cannot follow."""

    @classmethod
    def trained_elsewhere(cls) -> Iterable[int]:
        """The parameters of live models that optimizers update through copies of their own, by identity."""
        return ()

    def torch_optimizers(self) -> list[torch.optim.Optimizer]:
        """The torch optimizers inside those given."""
        return [optimizers.innermost(optimizer) for optimizer in self.given_optimizers]

    def attach(self, loop: Loop) -> Undo:
        """Follow what the runtime does between the events that every torch loop has."""
        return lambda: None

    # Gradients

    def accumulators(self, wanted: Collection[str]) -> Iterator[Accumulator]:
        """The tensors that gradients of these parameters accumulate into, as far as they are there by now."""
        for name in wanted:
            parameter = self.parameters[name]
            if parameter.requires_grad:
                yield Accumulator(parameter, ((name, None),))

    def check_local(self, accumulator: torch.Tensor) -> None:
        """Refuse, by a ModelError, to call what autograd has just computed for a tensor its gradient."""

    def accumulated(self, accumulator: torch.Tensor) -> torch.Tensor | None:
        """What this rank's micro-steps add up to so far, when backward has just added to it."""
        return accumulator.grad

    def gradient(self, name: str) -> torch.Tensor | None:
        """This rank's piece of a reduced gradient, not yet clipped."""
        return self.parameters[name].grad

    def loss_scale(self) -> torch.Tensor | None:
        """What the runtime multiplies the loss by, if it does."""
        return None

    # What the optimizer holds

    def pieces(self, optimizer: torch.optim.Optimizer) -> Iterator[Piece]:
        """What an optimizer's present `param_groups` hold, by parameter."""
        for group in optimizer.param_groups:
            for held in group["params"]:
                name = self.names.get(id(held))
                if name is not None and held.numel():
                    yield Piece(name, held, group)

    def parameter_ids(self, optimizer: torch.optim.Optimizer) -> Iterable[int]:
        """The model's parameters that an optimizer updates, on whichever rank, by identity."""
        return [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]

    def keeps_state_alone(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether no other rank has the state this optimizer has, whoever else holds the parameters."""
        return False

    def weight(self, name: str) -> torch.Tensor:
        """What this rank holds of a parameter, as precisely as anyone does."""
        return self.parameters[name]

    # Who else

    def share(self, name: str) -> Share:
        """Which part of a parameter this rank holds, and who else holds the same."""
        parameter = self.parameters[name]
        return sharing.of_dtensor(parameter) or Share(tuple(parameter.shape))

    def mesh(self) -> Mesh:
        """The dimensions ranks are arranged in, with sizes and this rank's place, as far as the engine knows them."""
        return sharing.mesh_of(self.parameters.values())
