"""Make CPU tensors take the code paths of CUDA tensors during a simulation.

Some operators choose among implementations by device, and those keep different tensors for the backward pass: dropout
keeps a mask of one byte per element on CUDA, attention is a fused kernel, autocast has longer lists. Operators are
replaced in the dispatcher, for CPU tensors of this process, and restored at the end.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vario.backends.gpus import Gpu
from vario.backends.torch.memory_simulation import recurrent
from vario.backends.torch.releases import HAS_FUSED_RMS_NORM, prefers_cudnn_attention

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)

IN_HALF = {"addmv", "addr", "mv", "prelu", "einsum", "chain_matmul", "linalg_multi_dot", "_convolution", "convolution"}
IN_HALF |= {"cudnn_convolution", "cudnn_convolution_transpose", "_scaled_dot_product_flash_attention"}
IN_HALF |= {"_thnn_fused_lstm_cell", "_thnn_fused_gru_cell"}
"""Run in half precision by CUDA's autocast, and unknown to the CPU's."""

CELLS = {"gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell"}
"""Composed of products here, which autocast runs in half precision with weights that it converts once."""

IN_GIVEN_TYPE = {"softmax", "log_softmax", "sum", "cumsum", "cumprod", "prod"}
"""Run in float32 unless the caller names a dtype."""

WIDEST = {"addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot"}
WIDEST |= {"scatter_add"}
"""Run in the widest dtype among their arguments, as always."""


@contextmanager
def cuda_paths(gpu: Gpu) -> Iterator[None]:
    """Make CPU tensors keep for backward what that GPU would keep."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # torch warns about each replacement.
            warnings.simplefilter("ignore")
            library.impl("dropout", dropout, "AutogradCPU")
            library.impl("scaled_dot_product_attention", functools.partial(attention, gpu), "AutogradCPU")
            if HAS_FUSED_RMS_NORM:
                library.impl("rms_norm", rms_norm, "AutogradCPU")
            library.impl("softmax.int", softmax, "AutogradCPU")
            library.impl("log_softmax.int", log_softmax, "AutogradCPU")
            for name, kernel in recurrent.operators(gpu):
                library.impl(name, kernel, "AutogradCPU")
            for name, kernel in _autocast_kernels():
                library.impl(name, kernel, "AutocastCPU")
        yield
    finally:
        library._destroy()


def dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Run CUDA's dropout, which keeps one byte per element."""
    if not train or p == 0:
        return tensor
    if p == 1 or tensor.numel() == 0:
        return tensor * torch.zeros_like(tensor)
    return aten.native_dropout(tensor, p, train)[0]  # type: ignore[no-any-return]


def softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Run CUDA's softmax, which reads float16 and writes float32 without a copy in between."""
    if tensor.dtype is torch.float16 and dtype is torch.float32:
        return aten._softmax(tensor, dim, True)  # type: ignore[no-any-return]
    return aten._softmax(tensor if dtype is None else tensor.to(dtype), dim, False)  # type: ignore[no-any-return]


def log_softmax(tensor: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Run CUDA's log-softmax, likewise."""
    if tensor.dtype is torch.float16 and dtype is torch.float32:
        return aten._log_softmax(tensor, dim, True)  # type: ignore[no-any-return]
    return aten._log_softmax(tensor if dtype is None else tensor.to(dtype), dim, False)  # type: ignore[no-any-return]


def rms_norm(tensor: torch.Tensor, shape: list[int], weight: Any = None, eps: float | None = None) -> torch.Tensor:
    """Run the fused kernel, which keeps one number per row."""
    return aten._fused_rms_norm(tensor, shape, weight, eps)[0]  # type: ignore[no-any-return]


def attention(
    gpu: Gpu,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Run the kernel that torch uses on that GPU, with what it keeps."""
    kernel = attention_kernel(gpu, query, key, value, mask, dropout_p, enable_gqa)
    if mask is not None and mask.dtype is torch.bool:
        zero, hidden = (torch.scalar_tensor(v, dtype=query.dtype) for v in (0.0, float("-inf")))
        mask = torch.where(mask, zero, hidden)
    keeps = any(one.requires_grad for one in (query, key, value))
    width = query.size(-1)
    if kernel == "cudnn":
        made = aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, keeps, dropout_p, is_causal, False, scale=scale
        )
    elif kernel == "flash":
        scale = width**-0.5 if scale is None else scale
        query, key, value = (_padded(one, 8) for one in (query, key, value))
        made = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)
    elif kernel == "efficient":
        mask = None if mask is None else _aligned(mask, query, key)
        made = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, keeps, dropout_p, is_causal, scale=scale
        )
    else:
        made = aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )
    out: torch.Tensor = made[0]
    return out[..., :width] if kernel == "flash" and out.size(-1) != width else out


def attention_kernel(
    gpu: Gpu,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    enable_gqa: bool,
) -> str:
    """Return which of torch's attention kernels takes these tensors on that GPU: cudnn, flash, efficient or math."""
    is_half = query.dtype in HALVES
    width = query.size(-1)
    if query.dim() != 4 or width != value.size(-1):
        return "math"
    mask_learns = mask is not None and mask.requires_grad
    if mask_learns and dropout_p > 0:
        return "math"  # seen with T5's learnt relative positions; not without dropout, with Swin's
    shares = query.size(1) != key.size(1)
    prefers_cudnn = gpu.prefers_cudnn_attention and prefers_cudnn_attention()
    if is_half and prefers_cudnn and width % 8 == 0 and width <= 128 and not mask_learns:
        return "cudnn"
    if is_half and gpu.capability >= (8, 0) and mask is None and width <= 256:
        return "flash"
    aligned = width % (8 if is_half else 4) == 0
    fits = query.dtype is not torch.bfloat16 or gpu.capability >= (8, 0)
    if (is_half or query.dtype is torch.float32) and aligned and fits and not (enable_gqa and shares):
        return "efficient"
    return "math"


def _padded(tensor: torch.Tensor, multiple: int) -> torch.Tensor:
    missing = -tensor.size(-1) % multiple
    return torch.nn.functional.pad(tensor, [0, missing]) if missing else tensor


def _aligned(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    length = mask.size(-1)
    if length % 16:
        mask = torch.nn.functional.pad(mask, [0, 16 - length % 16])[..., :length]
    return mask.expand(query.size(0), query.size(1), query.size(2), key.size(2))


def _autocast_kernels() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield what CUDA's autocast does if the CPU's does something else, for every operator of this torch."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for full in torch._C._dispatch_get_all_op_names():
        if not full.startswith("aten::"):
            continue
        name, _, overload = full.removeprefix("aten::").partition(".")
        on_cuda, on_cpu = has(full, "AutocastCUDA"), has(full, "AutocastCPU")
        if on_cpu and not on_cuda:
            yield full.removeprefix("aten::"), torch.library.fallthrough_kernel
        elif on_cuda and not on_cpu and name not in WIDEST and name not in CELLS:
            operator = getattr(getattr(aten, name), overload or "default")
            yield full.removeprefix("aten::"), _cast_kernel(operator, name)


def _cast_kernel(operator: Any, name: str) -> Callable[..., Any]:
    without_autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*args: Any, **kwargs: Any) -> Any:
        if name in IN_GIVEN_TYPE:
            return run_in_given_type(*args, **kwargs)
        wanted = torch.get_autocast_dtype("cpu") if name in IN_HALF else torch.float32

        def cast(one: Any) -> Any:
            if isinstance(one, (list, tuple)):
                return type(one)(cast(each) for each in one)
            if not isinstance(one, torch.Tensor) or not one.is_floating_point() or one.dtype is torch.float64:
                return one
            return one.to(wanted)

        with torch._C._ExcludeDispatchKeyGuard(without_autocast):
            return operator(*cast(args), **{key: cast(value) for key, value in kwargs.items()})

    def run_in_given_type(*args: Any, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
        names = [argument.name for argument in operator._schema.arguments]
        is_given = dtype is not None or ("dtype" in names and len(args) > names.index("dtype"))
        with torch._C._ExcludeDispatchKeyGuard(without_autocast):
            if is_given and dtype is None:
                return operator(*args, **kwargs)
            if not is_given and args[0].is_floating_point():
                dtype = torch.float32
            return operator(*args, dtype=dtype, **kwargs)

    return run
