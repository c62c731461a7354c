"""DeepSpeed's optimizers: their part of each parameter, and where they keep its reduced gradient.

Their attributes are private to DeepSpeed. Everything read from them is in this file, under the names of release 0.19;
if one is missing, `kept` raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from vario.core.errors import ModelError


@dataclass(frozen=True)
class Fragment:
    """This rank's piece of one parameter."""

    parameter: torch.nn.Parameter
    part: slice | None
    """Its elements within the tensor that the torch optimizer updates; None: all of them."""
    range: tuple[int, int] | None
    """Which elements of the flattened parameter it has; None: all of them, on every rank."""
    gradient: Callable[[], torch.Tensor | None]
    """Its gradient when all ranks and micro-steps are in it, with the loss scale, not clipped."""


@dataclass(frozen=True)
class Partition:
    """A tensor that the torch optimizer updates instead of parameters of the model."""

    held: torch.Tensor
    parameters: Sequence[torch.nn.Parameter]
    """The parameters in the ranks' partitions, whether this rank has a piece of them or not."""
    fragments: Sequence[Fragment]


def partitions(optimizer: Any) -> list[Partition]:
    """Return what a DeepSpeed optimizer uses instead of the model's parameters; nothing for a plain torch optimizer."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return []
    if getattr(optimizer, "zenflow", False):
        raise ModelError(f"watch: ZenFlow updates weights with its own optimizers, which vario cannot read. {_WAY_OUT}")
    for kind in type(optimizer).__mro__:
        if kind.__name__ in _KINDS:
            return list(_KINDS[kind.__name__](optimizer))
    known = ", ".join(_KINDS)
    raise ModelError(
        f"watch: {type(optimizer).__name__} is not a DeepSpeed optimizer that vario can read ({known}). {_WAY_OUT}"
    )


def keeps_local_sum(optimizer: Any) -> bool:
    """Whether gradients of several micro-steps accumulate on a rank before the ranks reduce them."""
    if getattr(optimizer, "partition_gradients", False):  # ZeRO 2 shares those of each micro-step
        return False
    kinds = {kind.__name__ for kind in type(optimizer).__mro__}
    return not kinds & {"DeepSpeedZeroOptimizer_Stage3", "BF16_Optimizer"}


def loss_scale(runtime: Any) -> float:
    """Return what a runtime multiplies losses by.

    Since it has `scale`, a DeepSpeedEngine leaves that to optimizers with a `scale_if_loss`: those of ZeRO. The ones of
    stage 0 in float16 still divide gradients by a `loss_scale`, although no loss was multiplied by it.
    """
    if hasattr(type(runtime), "scale") and not hasattr(runtime.optimizer, "scale_if_loss"):
        return 1.0
    return float(getattr(runtime.optimizer, "loss_scale", 1.0))


def held_elements(parameter: Any) -> tuple[int, int] | None:
    """Return this rank's elements of a flattened ZeRO-3 parameter; None for other parameters."""
    if not hasattr(parameter, "ds_tensor"):
        return None
    size, total = int(parameter.partition_numel()), int(parameter.ds_numel)
    first = min(torch.distributed.get_rank(parameter.ds_process_group) * size, total)
    # The last ranks' partitions end in padding.
    return first, min(first + size, total)


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """Return the shape of a parameter, which ZeRO-3 leaves empty between its uses."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def kept(owner: Any, name: str) -> Any:
    """Return an attribute that DeepSpeed does not document; raise ModelError if this release has none."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise ModelError(
            f"watch: this DeepSpeed has another layout than 0.19: {type(owner).__name__} has no '{name}'. {_WAY_OUT}"
        ) from None


_WAY_OUT = (
    "With engine='plain' and no optimizer you can still record activations and local gradients; call "
    "monitor.step() after each update."
)


def _zero_1_and_2(optimizer: Any) -> Iterator[Partition]:
    # Not what DeepSpeed stores at each parameter (`_hp_mapping`): that ignores `round_robin_gradients`.
    held, offsets = kept(optimizer, "single_partition_of_fp32_groups"), kept(optimizer, "round_robin_bit16_offsets")
    process_groups = kept(optimizer, "real_dp_process_group")
    for index, group in enumerate(kept(optimizer, "round_robin_bit16_groups")):
        size = held[index].numel()
        begin = torch.distributed.get_rank(process_groups[index]) * size
        fragments = []
        gradients = _GradientsOfGroup(optimizer, index)
        for parameter, offset in zip(group, offsets[index], strict=True):
            first, last = max(offset, begin), min(offset + parameter.numel(), begin + size)
            if first < last:
                part, elements = slice(first - begin, last - begin), (first - offset, last - offset)
                fragments.append(Fragment(parameter, part, elements, partial(gradients.piece, part)))
        yield Partition(held[index], group, fragments)


def _mapped(parameter: Any) -> Iterator[tuple[slice, tuple[int, int]]]:
    """Yield where this rank's piece of a parameter is in its partition, and its elements; nothing without one."""
    mapping = kept(parameter, "_hp_mapping")
    if mapping is not None:
        part, elements = kept(mapping, "hp_fragment_address"), kept(mapping, "lp_fragment_address")
        yield slice(part.start, part.start + part.numel), (elements.start, elements.start + elements.numel)


class _GradientsOfGroup:
    """The gradients of one group: consecutive in a list, with padding between them, until they are used."""

    def __init__(self, optimizer: Any, index: int) -> None:
        self._optimizer = optimizer
        self._index = index
        self._places: dict[int, int] = {}

    def piece(self, part: slice) -> torch.Tensor | None:
        if getattr(self._optimizer, "cpu_offload", False):
            raise ModelError(_OFFLOADED)
        found = kept(self._optimizer, "averaged_gradients").get(self._index)
        if found is None:
            return None
        if not self._places:
            starts = accumulate((gradient.numel() for gradient in found), initial=0)
            self._places = {start: place for place, start in enumerate(starts)}
        place = self._places.get(part.start, len(found))
        if place >= len(found) or found[place].numel() != part.stop - part.start:
            raise ModelError("this release of DeepSpeed stores reduced gradients in another order than 0.19")
        return found[place]  # type: ignore[no-any-return]


_OFFLOADED = (
    "the reduced gradients of an offloaded optimizer are still being copied to the host when they are complete; "
    "record 'gradient_applied': the gradients the optimizer gets"
)


def _zero_3(optimizer: Any) -> Iterator[Partition]:
    held = kept(optimizer, "fp32_partitioned_groups_flat")
    for index, group in enumerate(kept(optimizer, "fp16_groups")):
        fragments, start = [], 0
        for place, parameter in enumerate(group):
            first, last = held_elements(parameter) or (0, 0)
            fragments.append(
                Fragment(
                    parameter,
                    slice(start, start + last - first),
                    (first, last),
                    _partitioned_gradient(optimizer, index, place, last - first),
                )
            )
            start += int(parameter.partition_numel())
        if start != held[index].numel() and not _is_swapped(optimizer):
            raise ModelError(f"watch: this DeepSpeed pads ZeRO-3 partitions differently from 0.19. {_WAY_OUT}")
        yield Partition(held[index], group, fragments)


def _is_swapped(optimizer: Any) -> bool:
    return bool(getattr(optimizer, "swap_optimizer", False))


def _partitioned_gradient(optimizer: Any, index: int, place: int, size: int) -> Callable[[], torch.Tensor | None]:
    def gradient() -> torch.Tensor | None:
        if getattr(optimizer, "offload_optimizer", False):
            raise ModelError(_OFFLOADED)
        found = kept(optimizer, "averaged_gradients").get(index)
        return None if found is None else found[place].reshape(-1)[:size]

    return gradient


def _bfloat16_with_float32_gradients(optimizer: Any) -> Iterator[Partition]:
    """ZeRO-1 in bfloat16 with `grad_accum_dtype` fp32: whole gradients on every rank, the rest as in ZeRO-1."""
    held, gradients = kept(optimizer, "fp32_groups_flat_partition"), kept(optimizer, "fp32_groups_gradients")
    for index, group in enumerate(kept(optimizer, "bf16_groups")):
        fragments = [
            Fragment(parameter, part, elements, partial(_elements_of, whole, elements))
            for parameter, whole in zip(group, gradients[index], strict=True)
            for part, elements in _mapped(parameter)
        ]
        yield Partition(held[index], group, fragments)


def _elements_of(whole: torch.Tensor, elements: tuple[int, int]) -> torch.Tensor:
    return whole[slice(*elements)]


def _float16_flat(optimizer: Any) -> Iterator[Partition]:
    """Stage 0 in half precision with a fused optimizer: one flat master copy per group, the same on all ranks."""
    held = kept(optimizer, "fp32_groups_flat")
    for index, group in enumerate(kept(optimizer, "fp16_groups")):
        fragments, start = [], 0
        for parameter in group:
            end = start + parameter.numel()
            fragments.append(Fragment(parameter, slice(start, end), None, _own_gradient(parameter)))
            start = end
        yield Partition(held[index], group, fragments)


def _float16(optimizer: Any) -> Iterator[Partition]:
    """Stage 0 in half precision: a master copy per parameter, the same on all ranks."""
    held = kept(optimizer, "fp32_groups")
    for copies, group in zip(held, kept(optimizer, "fp16_groups"), strict=True):
        for copy, parameter in zip(copies, group, strict=True):
            yield Partition(copy, [parameter], [Fragment(parameter, None, None, _own_gradient(parameter))])


def _own_gradient(parameter: torch.nn.Parameter) -> Callable[[], torch.Tensor | None]:
    return lambda: parameter.grad


_KINDS: dict[str, Callable[[Any], Iterator[Partition]]] = {
    "DeepSpeedZeroOptimizer": _zero_1_and_2,
    "DeepSpeedZeroOptimizer_Stage3": _zero_3,
    "BF16_Optimizer": _bfloat16_with_float32_gradients,
    "FP16_Optimizer": _float16_flat,
    "FP16_UnfusedOptimizer": _float16,
}
