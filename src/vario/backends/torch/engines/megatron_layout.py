"""How Megatron splits a model over ranks: its process groups, tensor-parallel slices, and pieces of gradient buffers.

Nothing here communicates with another rank.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from vario.backends.torch import naming
from vario.backends.torch.engines import sharing
from vario.core.errors import ModelError
from vario.core.records import Mesh, Share

Range = tuple[int, int]


def wrappers_of(roots: Mapping[str, torch.nn.Module]) -> list[Any]:
    """Return Megatron's own DistributedDataParallel around the models, also if only the inner model is given."""
    found = [root for root in roots.values() if _is_wrapper(type(root))]
    if len(found) < len(roots):
        bare = {id(naming.unwrap(root)) for root in roots.values()}
        live = gc.get_objects()
        kinds = {kind for kind in set(map(type, live)) if _is_wrapper(kind)}
        outside = [item for item in live if type(item) in kinds and "_modules" in vars(item)]
        found += [item for item in outside if id(naming.unwrap(item)) in bare and not any(item is own for own in found)]
    return found


def _is_wrapper(kind: type) -> bool:
    return kind.__name__ == "DistributedDataParallel" and kind.__module__.startswith("megatron.")


def owned_ranges(wrappers: Iterable[Any]) -> dict[int, Range]:
    """Return the elements of each parameter that a DistributedOptimizer updates on this rank, by identity."""
    found: dict[int, Range] = {}
    for wrapper in wrappers:
        try:
            if wrapper.ddp_config.use_distributed_optimizer:
                for buffer in (*wrapper.buffers, *wrapper.expert_parallel_buffers):
                    found.update(_owned(buffer))
        except AttributeError as error:
            raise ModelError(
                f"watch: this release of Megatron-core has another layout of gradient buffers: {error}. Tested with "
                "releases around 0.16."
            ) from error
    return found


def _owned(buffer: Any) -> Iterator[tuple[int, Range]]:
    """Yield this rank's ranges: each rank has an equal piece of every bucket, cutting through parameters."""
    group = buffer.data_parallel_group
    for bucket in buffer.buckets:
        size = bucket.grad_data.numel() // group.size()
        first = bucket.offset + group.rank() * size
        for parameter in bucket.params:
            begin, end, _ = buffer.param_index_map[parameter]
            start, stop = max(first, begin) - begin, min(first + size, end) - begin
            yield id(parameter), (start, stop) if start < stop else (0, 0)


def state() -> Any:
    """Return Megatron's `parallel_state`, once its process groups exist; None before, and without Megatron."""
    found = sys.modules.get("megatron.core.parallel_state")
    return found if found is not None and found.model_parallel_is_initialized() else None


def share(parameter: torch.nn.Parameter, name: str, owned: Range | None) -> Share:
    """Return this rank's part of a parameter: a slice by tensor parallelism, and of that a range of elements."""
    groups, shape = state(), tuple(parameter.shape)
    if groups is None:
        return Share(shape, None, owned)
    is_expert = not getattr(parameter, "allreduce", True)
    tensor = _group(groups, "expert_tensor" if is_expert else "tensor_model")
    is_split = bool(getattr(parameter, "tensor_model_parallel", False)) and tensor is not None and tensor.size() > 1
    box = None
    if is_split:
        shape, box = _slice(shape, int(getattr(parameter, "partition_dim", 0)), tensor)
    if is_expert and "local_experts" not in name:
        # Experts without their own name, in the order of the ranks.
        shape, box = _slice(shape, 0, _group(groups, "expert_model"), box)
    return Share(shape, box, owned, _replicas(groups, is_expert, is_split, owned is not None))


def _slice(
    shape: tuple[int, ...], at: int, group: Any, box: tuple[Range, ...] | None = None
) -> tuple[tuple[int, ...], tuple[Range, ...]]:
    """Return the whole shape of what a group has together, and this rank's slice along one dimension."""
    ranges = list(box or ((0, size) for size in shape))
    start, stop = ranges[at]
    offset = group.rank() * shape[at]
    ranges[at] = start + offset, stop + offset
    return (*shape[:at], shape[at] * group.size(), *shape[at + 1 :]), tuple(ranges)


def _replicas(groups: Any, is_expert: bool, is_split: bool, is_owned: bool) -> tuple[int, ...]:
    """Return the ranks that have the same: along data parallelism, unless each has a range, and tensor parallelism."""
    if is_expert:
        found = None if is_owned else groups.get_expert_data_parallel_group(check_initialized=False)
    elif is_split:
        found = None if is_owned else groups.get_data_parallel_group(with_context_parallel=True)
    elif is_owned:
        found = _group(groups, "tensor_model")
    else:
        found = groups.get_tensor_and_data_parallel_group(with_context_parallel=True)
    return (torch.distributed.get_rank(),) if found is None else tuple(sorted(sharing.group_ranks(found)))


def mesh() -> Mesh:
    """Return data, tensor and pipeline parallelism, and expert and context parallelism if used."""
    groups = state()
    if groups is None:
        return {}
    found = {
        "data": groups.get_data_parallel_group(),
        "tensor": _group(groups, "tensor_model"),
        "pipeline": _group(groups, "pipeline_model"),
        "context": groups.get_context_parallel_group(check_initialized=False),
        "expert": _group(groups, "expert_model"),
    }
    always = ("data", "tensor", "pipeline")
    return {
        name: (group.size(), group.rank())
        for name, group in found.items()
        if group is not None and (name in always or group.size() > 1)
    }


def _group(groups: Any, kind: str) -> Any:
    return getattr(groups, f"get_{kind}_parallel_group")(check_initialized=False)
