"""DeepSpeed, ZeRO 0 to 3: parameters in the model, flat pieces of master copies in the torch optimizer inside."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from vario.backends.base import Undo
from vario.backends.torch import hooks
from vario.backends.torch.engines import optimizers, sharing
from vario.backends.torch.engines.base import Engine, Loop, Piece
from vario.backends.torch.engines.deepspeed_partitions import (
    Fragment,
    Partition,
    held_elements,
    keeps_local_sum,
    kept,
    partitions,
    whole_shape,
)
from vario.records import Mesh, Share


class DeepSpeedEngine(Engine):
    """Reduced gradients are complete when the runtime turns to its update; each rank's optimizer holds flat pieces.

    The optimizer inside is called once per group of parameters, or per sub-group in ZeRO 3, with `param_groups` cut
    down to it. What it holds is told from what stands in them at that moment.
    """

    name: ClassVar[str] = "deepspeed"
    precedence: ClassVar[int] = 4
    reduces_in_backward: ClassVar[bool] = False

    def __init__(
        self,
        roots: Mapping[str, torch.nn.Module],
        parameters: Mapping[str, torch.nn.Parameter],
        given_optimizers: Sequence[Any],
    ) -> None:
        super().__init__(roots, parameters, given_optimizers)
        self._runtimes = _runtimes_of(roots)
        found = [(runtime, partition) for runtime in self._runtimes for partition in partitions(runtime.optimizer)]
        self._partitions = {id(partition.held): partition for _, partition in found}
        self._fragments: dict[str, tuple[Partition, Fragment]] = {}
        self._held_elsewhere: set[str] = set()
        for _, partition in found:
            self._held_elsewhere.update(self._named(partition.parameters))
            for fragment in partition.fragments:
                for name in self._named([fragment.parameter]):
                    self._fragments[name] = partition, fragment
        self._held_elsewhere -= self._fragments.keys()
        self._scale: tuple[float, torch.Tensor | None] = 1.0, None
        self.keeps_local_sum = all(keeps_local_sum(runtime.optimizer) for runtime in self._runtimes)

    def _named(self, parameters: Iterable[torch.nn.Parameter]) -> list[str]:
        return [name for name in (self._names.get(id(parameter)) for parameter in parameters) if name is not None]

    @classmethod
    def fits(cls, roots: Mapping[str, torch.nn.Module], given_optimizers: Sequence[Any]) -> bool:
        """Whether a DeepSpeedEngine drives any of the models."""
        return bool(_runtimes_of(roots))

    @classmethod
    def trained_elsewhere(cls) -> Iterable[int]:
        """The parameters of all live runtimes, whose optimizers hold copies."""
        return [
            id(parameter)
            for runtime in _live_runtimes()
            for parameter in runtime.module.parameters()
            if parameter.requires_grad
        ]

    def torch_optimizers(self) -> list[torch.optim.Optimizer]:
        """Those inside the given ones, or inside the runtime's."""
        return super().torch_optimizers() or [optimizers.innermost(runtime.optimizer) for runtime in self._runtimes]

    def attach(self, loop: Loop) -> Undo:
        """Follow the runtime into its updates: at their entry nothing is clipped, at their end it knows of overflow."""
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
                loop.update_was_skipped(optimizers.innermost(runtime.optimizer))

        return hooks.around(runtime, "_take_model_step", after, before=before)

    # Gradients

    def accumulated(self, accumulator: torch.Tensor) -> torch.Tensor | None:
        """Where DeepSpeed's own hook has taken it: to an attribute of the parameter, in another precision."""
        return accumulator.grad if accumulator.grad is not None else getattr(accumulator, "grad_accum", None)

    def gradient(self, name: str) -> torch.Tensor | None:
        """This rank's piece, averaged over ranks."""
        if name in self._fragments:
            return self._fragments[name][1].gradient()
        return None if name in self._held_elsewhere else super().gradient(name)

    def loss_scale(self) -> torch.Tensor | None:
        """That of the runtime; None where it scales nothing, as in bfloat16."""
        scale = next((float(getattr(runtime.optimizer, "loss_scale", 1.0)) for runtime in self._runtimes), 1.0)
        if scale != self._scale[0]:
            self._scale = scale, torch.tensor(scale, device="cpu")
        return None if scale == 1.0 else self._scale[1]

    # What the optimizer holds

    def pieces(self, optimizer: torch.optim.Optimizer) -> Iterator[Piece]:
        """The pieces of all parameters in the flat tensors that an optimizer has at this moment."""
        for group in optimizer.param_groups:
            for held in group["params"]:
                partition = self._partitions.get(id(held))
                for fragment in partition.fragments if partition is not None else ():
                    for name in self._named([fragment.parameter]):
                        yield Piece(name, held, group, fragment.part)
        yield from super().pieces(optimizer)

    def parameter_ids(self, optimizer: torch.optim.Optimizer) -> Iterable[int]:
        """The model's parameters behind the flat tensors; all of them while ZeRO 3 has taken its tensors out."""
        found = [
            number for group in optimizer.param_groups for held in group["params"] for number in self._behind(held)
        ]
        if not found and any(optimizers.innermost(runtime.optimizer) is optimizer for runtime in self._runtimes):
            return [id(parameter) for partition in self._partitions.values() for parameter in partition.parameters]
        return found

    def _behind(self, held: torch.Tensor) -> list[int]:
        partition = self._partitions.get(id(held))
        return [id(held)] if partition is None else [id(parameter) for parameter in partition.parameters]

    def weight(self, name: str) -> torch.Tensor:
        """The piece of the master copy; of a frozen parameter what ZeRO 3 keeps here, or all of it."""
        if name in self._fragments:
            partition, fragment = self._fragments[name]
            return Piece(name, partition.held, {}, fragment.part).cut(partition.held)
        parameter: Any = self.parameters[name]
        elements = held_elements(parameter)
        if elements is None:
            return super().weight(name)
        kept_here: torch.Tensor = parameter.ds_tensor
        return kept_here.detach().reshape(-1)[: elements[1] - elements[0]]

    # Who else

    def share(self, name: str) -> Share:
        """A range of the flattened parameter; or all of it on every rank of data parallelism."""
        parameter = self.parameters[name]
        shape, here = whole_shape(parameter), (torch.distributed.get_rank(),)
        if name in self._held_elsewhere:
            return Share(shape, None, (0, 0), here)
        elements = held_elements(parameter)
        if name in self._fragments:
            elements = self._fragments[name][1].range
        if elements is not None:
            return Share(shape, None, elements, here)
        return Share(shape, None, None, tuple(sorted(sharing.group_ranks(_data_group(self._runtime_of(parameter))))))

    def _runtime_of(self, parameter: torch.nn.Parameter) -> Any:
        return next(
            (one for one in self._runtimes if any(parameter is own for own in one.module.parameters())),
            self._runtimes[0],
        )

    def mesh(self) -> Mesh:
        """One dimension of data parallelism."""
        return sharing.group_mesh("data", _data_group(self._runtimes[0]))


def _runtimes_of(roots: Mapping[str, torch.nn.Module]) -> list[Any]:
    """The runtimes among these models, or those that drive them: trainers hand out the bare model."""
    found: list[Any] = []
    for root in roots.values():
        own = [root] if _is_runtime(root) else _driving(root)
        found += [runtime for runtime in own if all(runtime is not known for known in found)]
    return found


def _driving(root: torch.nn.Module) -> list[Any]:
    wanted = {id(parameter) for parameter in root.parameters()}
    live = _live_runtimes()
    return [one for one in live if any(id(parameter) in wanted for parameter in one.module.parameters())]


def _live_runtimes() -> list[Any]:
    """All DeepSpeedEngines that train; none before somebody has imported DeepSpeed."""
    if "deepspeed.runtime.engine" not in sys.modules:
        return []
    return [item for item in gc.get_objects() if _is_runtime(item)]


def _is_runtime(item: Any) -> bool:
    engine = sys.modules.get("deepspeed.runtime.engine")
    kind = getattr(engine, "DeepSpeedEngine", None)
    if kind is None or not issubclass(type(item), kind):
        return False
    held = item.__dict__
    return hasattr(held.get("optimizer"), "step") and "module" in held


def _data_group(runtime: Any) -> Any:
    """The ranks that share gradients: with sequence parallelism more than those with batches of their own."""
    return getattr(runtime, "seq_data_parallel_group", None) or kept(runtime, "data_parallel_group")
