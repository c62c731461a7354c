"""Megatron-core: gradients accumulate in `main_grad`, optimizers have master copies or pieces of them."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from vario.backends.protocols.events import Undo
from vario.backends.torch import naming
from vario.backends.torch.engines import megatron_layout, megatron_optimizers, optimizers
from vario.backends.torch.engines.base import Engine, Loop, Piece
from vario.backends.torch.engines.megatron_optimizers import Member
from vario.backends.torch.loop import hooks, module_hooks
from vario.core.errors import ModelError
from vario.core.records import Mesh, Share


class MegatronEngine(Engine):
    """After each micro-step Megatron adds `grad` to a buffer, `main_grad`; after the last one it reduces the buffers.

    They are complete when the outermost of its optimizers starts its step, which first copies, unscales and clips. A
    DistributedOptimizer updates an equal piece of every buffer on each rank; the rest of `main_grad` is stale there.
    """

    name: ClassVar[str] = "megatron"
    precedence: ClassVar[int] = 5
    clips_in_step: ClassVar[bool] = True
    calls_are_passes: ClassVar[bool] = True

    def prepare(self) -> None:
        """Inspect the models once."""
        self._wrappers = megatron_layout.wrappers_of(self.roots)
        self._owned = megatron_layout.owned_ranges(self._wrappers)
        self._members: list[Member] = []
        self._held: dict[int, str] = {}
        self._weights: dict[str, torch.Tensor] = {}
        self._stepped: list[Any] = []
        self._unknown: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._trouble: ModelError | None = None
        # Without Megatron's buffers gradients are where torch leaves them.
        has_buffers = any(hasattr(parameter, "main_grad") for parameter in self.parameters.values())
        self.reduces_in_backward = not has_buffers  # type: ignore[misc]
        given = [optimizer for optimizer in self.given_optimizers if megatron_optimizers.is_megatrons(optimizer)]
        self._look(megatron_optimizers.outermost(optimizer) for optimizer in given)
        if not self._members:
            self._look(megatron_optimizers.live_optimizers())

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether an optimizer or a module is Megatron's, or a parameter is in its buffers."""
        if "megatron" not in sys.modules:
            return False
        models = [root for root in roots.values() if isinstance(root, torch.nn.Module)]
        return (
            any(megatron_optimizers.is_megatrons(optimizer) for optimizer in given_optimizers)
            or any(naming.comes_from_megatron(module) for model in models for module in model.modules())
            or any(hasattr(parameter, "main_grad") for model in models for parameter in model.parameters())
        )

    @classmethod
    def check(cls, roots: Mapping[str, torch.nn.Module]) -> None:
        """Raise ModelError for models that Megatron shards in unsupported ways."""
        for root in roots.values():
            kind = type(root).__name__
            if "FullyShardedDataParallel" in kind and naming.comes_from_megatron(root):
                raise ModelError(
                    f"watch: Megatron's {kind} is not supported: its shards cannot be read. Train with its "
                    "DistributedDataParallel, or use engine='plain' and record neither gradients nor weights."
                )

    @classmethod
    def trained_elsewhere(cls) -> Iterable[int]:
        """Return the parameters that live optimizers update through copies or pieces, or have in their buffers."""
        if "megatron" not in sys.modules:
            return ()
        found: list[int] = []
        for optimizer in megatron_optimizers.live_optimizers():
            with contextlib.suppress(ModelError):  # raised by the engine, once the model is found in another way
                for member in megatron_optimizers.members(optimizer):
                    found += map(id, member.parameters)
        return found

    def _look(self, outermost: Iterable[Any]) -> None:
        """Find out which parameters the optimizers have."""
        for optimizer in outermost:
            if any(optimizer is known for known in self._stepped):
                continue
            try:
                found = list(megatron_optimizers.members(optimizer))
            except ModelError as error:
                self._trouble = error  # raised by the first quantity that needs it
                continue
            if any(id(parameter) in self.names for member in found for parameter in member.parameters):
                self._stepped.append(optimizer)
                for member in found:
                    self._learn(member)
            else:
                self._unknown.update(member.optimizer for member in found)

    def _learn(self, member: Member) -> None:
        self._members.append(member)
        for parameter, held in member.held:
            name = self.names.get(id(parameter))
            if name is None:
                continue
            start, stop = self._owned.get(id(parameter), (0, parameter.numel()))
            if held.numel() != stop - start:
                self._trouble = ModelError(
                    f"this Megatron-core partitions its buffers differently: its optimizer has {held.numel()} "
                    f"elements of '{name}', its buffers have {stop - start} on this rank. Tested "
                    "with releases around 0.16."
                )
            self._held[id(held)] = name
            self._weights[name] = held

    def torch_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return those inside Megatron's, one per member of a chain; others unchanged."""
        inside = [member.optimizer for member in self._members]
        given = [optimizer for optimizer in self.given_optimizers if not megatron_optimizers.is_megatrons(optimizer)]
        others = [optimizers.innermost(optimizer) for optimizer in given]
        return [*(inside if self.given_optimizers else ()), *(other for other in others if other not in inside)]

    def attach(self, loop: Loop) -> Undo:
        """Follow `step` of the outermost optimizers, also of one created between now and the first forward pass."""
        undo = hooks.Undos()
        followed: set[int] = set()

        def follow() -> None:
            for optimizer in self._stepped:
                if id(optimizer) not in followed:
                    followed.add(id(optimizer))
                    undo.add(self._follow(optimizer, loop))

        def called(*_: Any) -> None:
            if not followed and torch.is_grad_enabled():
                followed.add(0)  # searching all objects once is enough
                self._look(megatron_optimizers.live_optimizers())
                follow()

        follow()
        for root in self.roots.values():
            undo.add(module_hooks.before_forward(root, called))
        return undo

    def _follow(self, optimizer: Any, loop: Loop) -> Undo:
        def before(*_: Any) -> None:
            if not self.reduces_in_backward:
                loop.gradients_are_reduced()

        def returned(result: Any) -> None:
            success = result[0] if isinstance(result, tuple) and result else True
            if success is not None and not success:
                loop.update_was_skipped()

        return hooks.around(optimizer, "step", before=before, returned=returned)

    # Gradients

    def check_local(self, accumulator: torch.Tensor) -> None:
        """Raise ModelError for what a fused kernel passes to autograd: the gradient went to `main_grad` directly."""
        if getattr(accumulator, "grad_added_to_main_grad", False):
            raise ModelError(
                "Megatron's gradient_accumulation_fusion bypasses autograd, so the gradient of a single "
                "backward is not available. Record gradient_accumulated, or set gradient_accumulation_fusion=False."
            )

    def accumulated(self, accumulator: torch.Tensor) -> torch.Tensor | None:
        """Return the buffer plus what backward has just left in `grad`, which Megatron adds right after this."""
        total: torch.Tensor | None = getattr(accumulator, "main_grad", None)
        if total is None or getattr(accumulator, "grad_added_to_main_grad", False):
            return accumulator.grad if total is None else total
        return total if accumulator.grad is None else total.detach() + accumulator.grad.detach()

    def gradient(self, name: str) -> torch.Tensor | None:
        """Return this rank's piece of the buffers after reduction."""
        parameter = self.parameters[name]
        total: torch.Tensor | None = getattr(parameter, "main_grad", None)
        if total is None or not parameter.requires_grad:
            return parameter.grad
        self._check_trouble()
        return self._cut(parameter, total)

    def _cut(self, parameter: torch.nn.Parameter, tensor: torch.Tensor) -> torch.Tensor:
        owned = self._owned.get(id(parameter))
        return tensor if owned is None else tensor.detach().reshape(-1)[slice(*owned)]

    def loss_scale(self) -> torch.Tensor | None:
        """Return that of the first member with a scaler; all have the same."""
        return next((member.scaler.scale for member in self._members if member.scaler is not None), None)

    # The optimizer's parameters

    def pieces(self, optimizer: torch.optim.Optimizer) -> Iterator[Piece]:
        """Yield master copies, pieces of them, or the parameters themselves."""
        self._check_trouble()
        self._member_of(optimizer)
        for group in optimizer.param_groups:
            for held in group["params"]:
                name = self._held.get(id(held)) or self.names.get(id(held))
                if name is not None and held.numel():
                    yield Piece(name, held, group)

    def parameter_ids(self, optimizer: torch.optim.Optimizer) -> Iterable[int]:
        """Return the model's parameters behind the master copies, also those without an element on this rank."""
        member = self._member_of(optimizer)
        if member is None:
            return super().parameter_ids(optimizer)
        return [id(parameter) for parameter in member.parameters]

    def _member_of(self, optimizer: torch.optim.Optimizer) -> Member | None:
        found = next((member for member in self._members if member.optimizer is optimizer), None)
        if found is None and optimizer not in self._unknown:
            self._unknown.add(optimizer)
            if self.names.keys().isdisjoint(super().parameter_ids(optimizer)):
                self._look(megatron_optimizers.live_optimizers())
                return self._member_of(optimizer)
        return found

    def _check_trouble(self) -> None:
        if self._trouble is not None:
            raise self._trouble

    def weight(self, name: str) -> torch.Tensor:
        """Return the master copy, or this rank's piece of it; a parameter without an update unchanged."""
        return self._weights.get(name, self._cut(self.parameters[name], self.parameters[name]))

    # Ranks with the same parts

    def share(self, name: str) -> Share:
        """Return a slice by tensor parallelism; a range of it under a DistributedOptimizer."""
        parameter = self.parameters[name]
        return megatron_layout.share(parameter, name, self._owned.get(id(parameter)))

    def mesh(self) -> Mesh:
        """Return how Megatron arranges the ranks."""
        return megatron_layout.mesh()
