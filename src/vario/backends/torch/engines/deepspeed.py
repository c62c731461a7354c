"""DeepSpeed, ZeRO 0 to 3: parameters in the model, flat pieces of master copies in the torch optimizer inside."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from vario.backends.protocols.events import Undo
from vario.backends.torch.engines import optimizers, sharing
from vario.backends.torch.engines.base import Engine, Loop, Piece
from vario.backends.torch.engines.deepspeed_partitions import (
    Fragment,
    Partition,
    held_elements,
    keeps_local_sum,
    kept,
    loss_scale,
    partitions,
    whole_shape,
)
from vario.backends.torch.loop import hooks
from vario.core.errors import ModelError
from vario.core.records import Mesh, Share


class DeepSpeedEngine(Engine):
    """Reduced gradients are complete when the runtime starts its update; each rank's optimizer has flat pieces.

    The inner optimizer is called once per parameter group, or per sub-group in ZeRO 3, with `param_groups` cut down to
    it. Its parameters are those in `param_groups` at that moment.
    """

    name: ClassVar[str] = "deepspeed"
    precedence: ClassVar[int] = 4
    reduces_in_backward: ClassVar[bool] = False

    def prepare(self) -> None:
        """Inspect the models once."""
        self._runtimes = _runtimes_of(self.roots, self.given_optimizers)
        self._owners = {id(own): runtime for runtime in self._runtimes for own in runtime.module.parameters()}
        self._partitions_in = [(_inside(runtime), partitions(runtime.optimizer)) for runtime in self._runtimes]
        self._partitions = {id(found.held): found for _, all_found in self._partitions_in for found in all_found}
        self._fragments: dict[str, tuple[Partition, Fragment]] = {}
        self._held_elsewhere: set[str] = set()
        for partition in self._partitions.values():
            self._held_elsewhere.update(self._named(partition.parameters))
            for fragment in partition.fragments:
                for name in self._named([fragment.parameter]):
                    self._fragments[name] = partition, fragment
        self._held_elsewhere -= self._fragments.keys()
        self._scale: tuple[float, torch.Tensor | None] = 1.0, None
        self.keeps_local_sum = all(keeps_local_sum(runtime.optimizer) for runtime in self._runtimes)

    def _named(self, parameters: Iterable[torch.nn.Parameter]) -> list[str]:
        return [name for name in (self.names.get(id(parameter)) for parameter in parameters) if name is not None]

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether a DeepSpeedEngine trains any of the models."""
        return bool(_runtimes_of(roots, given_optimizers))

    @classmethod
    def check(cls, roots: Mapping[str, torch.nn.Module]) -> None:
        """Raise ModelError if this engine was chosen and no DeepSpeedEngine trains the models."""
        if not _runtimes_of(roots, ()):
            raise ModelError(
                "watch: engine='deepspeed', but no DeepSpeedEngine has this model. Call vario.watch after "
                "deepspeed.initialize."
            )

    @classmethod
    def trained_elsewhere(cls) -> Iterable[int]:
        """Return the parameters of all live runtimes, whose optimizers have copies."""
        return [
            id(parameter)
            for runtime in _live_runtimes()
            for parameter in runtime.module.parameters()
            if parameter.requires_grad
        ]

    def torch_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return those inside the given ones, or inside the runtime's."""
        return super().torch_optimizers() or [optimizer for optimizer, _ in self._partitions_in]

    def attach(self, loop: Loop) -> Undo:
        """Follow the runtime's updates: at their start nothing is clipped, at their end overflow is known."""
        undo = hooks.Undos()
        for runtime in self._runtimes:
            undo.add(self._follow(runtime, loop))
        return undo

    def _follow(self, runtime: Any, loop: Loop) -> Undo:
        kept(runtime, "_take_model_step")

        def before(*_: Any) -> None:
            loop.gradients_are_reduced()

        def after(*_: Any) -> None:
            if getattr(runtime.optimizer, "overflow", False):
                loop.update_was_skipped(_inside(runtime))

        return hooks.around(runtime, "_take_model_step", after, before=before)

    # Gradients

    def accumulated(self, accumulator: torch.Tensor) -> torch.Tensor | None:
        """Return it from where DeepSpeed's own hook has put it: an attribute of the parameter, in another precision."""
        return accumulator.grad if accumulator.grad is not None else getattr(accumulator, "grad_accum", None)

    def gradient(self, name: str) -> torch.Tensor | None:
        """Return this rank's piece, averaged over ranks."""
        if name in self._fragments:
            return self._fragments[name][1].gradient()
        return None if name in self._held_elsewhere else super().gradient(name)

    def loss_scale(self) -> torch.Tensor | None:
        """Return that of the runtime; None if it does not scale, as in bfloat16."""
        scale = loss_scale(self._runtimes[0])
        if scale != self._scale[0]:
            device = next(iter(self.parameters.values())).device
            self._scale = scale, torch.full((), scale, device=device)
        return None if scale == 1.0 else self._scale[1]

    # The optimizer's parameters

    def pieces(self, optimizer: torch.optim.Optimizer) -> Iterator[Piece]:
        """Yield the pieces of all parameters in the current flat tensors of an optimizer."""
        for group in optimizer.param_groups:
            for held in group["params"]:
                partition = self._partitions.get(id(held))
                for fragment in partition.fragments if partition is not None else ():
                    for name in self._named([fragment.parameter]):
                        yield Piece(name, held, group, fragment.part)
        yield from super().pieces(optimizer)

    def parameter_ids(self, optimizer: torch.optim.Optimizer) -> Iterable[int]:
        """Return the model's parameters behind the flat tensors; all of them while ZeRO 3 has removed its tensors."""
        found = [
            number for group in optimizer.param_groups for held in group["params"] for number in self._behind(held)
        ]
        if found:
            return found
        own = (partition for inside, all_own in self._partitions_in if inside is optimizer for partition in all_own)
        return [id(parameter) for partition in own for parameter in partition.parameters]

    def _behind(self, held: torch.Tensor) -> list[int]:
        partition = self._partitions.get(id(held))
        return [id(held)] if partition is None else [id(parameter) for parameter in partition.parameters]

    def weight(self, name: str) -> torch.Tensor:
        """Return the piece of the master copy; for a frozen parameter ZeRO 3's partition, or all of it."""
        if name in self._fragments:
            partition, fragment = self._fragments[name]
            return Piece(name, partition.held, {}, fragment.part).cut(partition.held)
        parameter: Any = self.parameters[name]
        elements = held_elements(parameter)
        if elements is None:
            return super().weight(name)
        kept_here: torch.Tensor = parameter.ds_tensor
        return kept_here.detach().reshape(-1)[: elements[1] - elements[0]]

    # Ranks with the same parts

    def share(self, name: str) -> Share:
        """Return a range of the flattened parameter, or all of it on every data-parallel rank."""
        parameter = self.parameters[name]
        shape, here = whole_shape(parameter), (torch.distributed.get_rank(),)
        if name in self._held_elsewhere:
            return Share(shape, None, (0, 0), here)
        elements = held_elements(parameter)
        if name in self._fragments:
            elements = self._fragments[name][1].range
        if elements is not None:
            return Share(shape, None, elements, here)
        group = _averaging_group(self._owners.get(id(parameter), self._runtimes[0]))
        return Share(shape, None, None, tuple(sorted(sharing.group_ranks(group))))

    def mesh(self) -> Mesh:
        """Return one dimension of data parallelism."""
        return sharing.group_mesh("data", _averaging_group(self._runtimes[0]))


def _runtimes_of(roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> list[Any]:
    """Return the runtimes among these models, or those that train them: trainers expose the bare model."""
    found: list[Any] = []
    for root in roots.values():
        own = [root] if _trains(root) else _driving(root)
        found += [runtime for runtime in own if all(runtime is not known for known in found)]
    if len(found) > len(roots):
        # An older one for the same model may still be in memory: the right one has the given optimizer.
        given = {id(optimizers.innermost(optimizer)) for optimizer in given_optimizers}
        found = [runtime for runtime in found if id(_inside(runtime)) in given] or found
    return found


def _inside(runtime: Any) -> torch.optim.Optimizer:
    return optimizers.innermost(runtime.optimizer)


def _driving(root: torch.nn.Module) -> list[Any]:
    live = _live_runtimes()
    wanted = {id(parameter) for parameter in root.parameters()} if live else set()
    return [one for one in live if any(id(parameter) in wanted for parameter in one.module.parameters())]


def _live_runtimes() -> list[Any]:
    """Return all DeepSpeedEngines that train; none before DeepSpeed is imported."""
    kind = _kind()
    return [] if kind is None else [item for item in gc.get_objects() if issubclass(type(item), kind) and _trains(item)]


def _kind() -> type | None:
    return getattr(sys.modules.get("deepspeed.runtime.engine"), "DeepSpeedEngine", None)


def _trains(item: Any) -> bool:
    """Whether this is a DeepSpeedEngine with an optimizer: one for inference has none."""
    kind = _kind()
    return kind is not None and isinstance(item, kind) and hasattr(vars(item).get("optimizer"), "step")


def _averaging_group(runtime: Any) -> Any:
    """Return the ranks that reduce gradients together: with sequence parallelism, more than have own batches."""
    return getattr(runtime, "seq_data_parallel_group", None) or kept(runtime, "data_parallel_group")
