"""The parameters of a torch model as they really are: shared, sharded, packed, or not materialised yet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from vario.backends.torch import naming
from vario.core.errors import ModelError


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter: what it represents, and what this rank has of it."""

    name: str
    shape: tuple[int, ...]
    """Shape of the whole parameter, as the layer uses it."""
    num_elements: int
    num_elements_here: int
    """Elements on this rank; fewer than all if the parameter is sharded."""
    bytes_here: int
    dtype: str
    """The dtype of the stored elements: `bfloat16`, `int8`, `nf4`."""
    is_packed: bool
    """Whether it is quantized, so that its size does not follow from shape and dtype."""
    is_floating: bool
    is_trainable: bool
    device: str


def parameter_specs(model: Any) -> list[ParameterSpec]:
    """Return every parameter of a model once, in model order, under its first name."""
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"expected a torch.nn.Module, got {type(model).__name__}")
    bare = naming.unwrap(model)
    specs: list[ParameterSpec] = []
    seen: set[tuple[Any, ...]] = set()
    for name, parameter in naming.named_parameters(bare):
        if torch.nn.parameter.is_lazy(parameter):
            raise ModelError(
                f"'{name}' of {type(bare).__name__} has no shape yet. Run the model once with a batch first."
            )
        place = _place(parameter)
        if place not in seen:
            specs.append(_spec(name, parameter))
        if place is not None:
            seen.add(place)
    return specs


def _place(parameter: torch.Tensor) -> tuple[Any, ...] | None:
    """Return the memory location of a plain parameter: two objects with the same location are tied."""
    if type(parameter) is not torch.nn.Parameter or parameter.layout is not torch.strided or parameter.is_meta:
        return None
    address = parameter.untyped_storage().data_ptr()
    return (address, parameter.storage_offset(), parameter.shape, parameter.stride()) if address else None


def _spec(name: str, parameter: torch.nn.Parameter) -> ParameterSpec:
    shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
    local = _part_here(parameter)
    here, stored_bytes, dtype, is_packed = local.numel(), _stored_bytes(local), local.dtype, False
    kind = naming.dtype_name(dtype)
    packed_shape = _shape_before_packing(parameter)
    if packed_shape is not None:
        shape, here, is_packed = packed_shape, math.prod(packed_shape), True
        kind = str(getattr(getattr(parameter, "quant_state", None), "quant_type", None) or kind)
    elif is_traceable_wrapper_subclass(local) and stored_bytes != here * local.element_size():
        is_packed = True
        kind = naming.dtype_name(max(_inner(local), key=lambda tensor: tensor.nbytes).dtype)
    elif getattr(parameter, "SCB", None) is not None:
        is_packed = True  # one byte per element, plus scales
    return ParameterSpec(
        name=name,
        shape=shape,
        num_elements=math.prod(shape),
        num_elements_here=here,
        bytes_here=stored_bytes + _scale_bytes(parameter),
        dtype=kind,
        is_packed=is_packed,
        is_floating=dtype.is_floating_point,
        is_trainable=parameter.requires_grad,
        device=str(parameter.device),
    )


def _part_here(parameter: Any) -> torch.Tensor:
    """Return this rank's part of a parameter: all of it, a DTensor's shard, or ZeRO-3's partition."""
    if parameter.numel() == 0 and isinstance(getattr(parameter, "ds_tensor", None), torch.Tensor):
        part: torch.Tensor = parameter.ds_tensor
        return part
    return parameter.detach().to_local() if hasattr(parameter, "to_local") else parameter  # type: ignore[no-any-return]


def _shape_before_packing(parameter: Any) -> tuple[int, ...] | None:
    """Return the shape of a weight that bitsandbytes has packed, two elements per byte, into a column."""
    if getattr(parameter, "bnb_quantized", None) is False:
        return None  # it will be packed when it is moved to its device
    state = getattr(parameter, "quant_state", None)
    if state is not None and getattr(state, "shape", None) is not None:
        return tuple(state.shape)
    if type(parameter).__name__ == "Params4bit" and not parameter.is_meta:
        return (parameter.numel() * 2 * parameter.element_size(),)
    return None


def _inner(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the plain tensors inside a tensor subclass."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _inner(getattr(tensor, name))


def _stored_bytes(tensor: torch.Tensor) -> int:
    return sum(inner.nbytes for inner in _inner(tensor))


def _scale_bytes(parameter: Any) -> int:
    """Return the bytes bitsandbytes keeps beside a packed weight to restore its values."""
    beside: list[Any] = [getattr(parameter, "SCB", None)]
    state = getattr(parameter, "quant_state", None)
    while state is not None:
        beside += vars(state).values() if hasattr(state, "__dict__") else ()
        state = getattr(state, "state2", None)
    return sum(tensor.nbytes for tensor in beside if isinstance(tensor, torch.Tensor))
