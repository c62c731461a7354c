"""Memory that CUDA kernels use while they run and free when they end; no fake tensor shows it.

Each rule says where torch or an NVIDIA library allocates it; the sizes were measured on an H200, operator by operator
(`bench/memory.py --operators`), and agree with torch's source code.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from vario.backends.gpus import MIB, Gpu

aten = torch.ops.aten
Sizes = list[list[int]]
"""Sizes of blocks that are allocated together, and of others after those."""

Rule = Callable[[tuple[Any, ...], Any, Gpu], Sizes]

MAX_REDUCE_THREADS = 512
MIN_VALUES_PER_THREAD = 16
MAX_VALUES_PER_THREAD = 256
SORTED_FROM = 3072
"""Embedding gradients of more indices than this are summed after a sort."""


def workspaces(func: Any, args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """Return what the kernel of an operator needs besides its outputs, in bytes."""
    rule = RULES.get(func)
    return rule(args, out, gpu) if rule is not None else []


def reduction(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """Sums over a long dimension are split over thread blocks, which exchange results in global memory."""
    if not isinstance(out, torch.Tensor) or out.numel() == 0 or args[0].numel() <= out.numel():
        return []
    return [[_reduction_bytes(args[0], args[1] if len(args) > 1 else None, out, gpu)]]


def _reduction_bytes(source: torch.Tensor, over: Any, result: torch.Tensor, gpu: Gpu) -> int:
    num_outputs, num_inputs = result.numel(), source.numel() // result.numel()
    element_bytes = max(4, result.element_size())
    dims = _reduced(source, over)
    fastest = min((d for d in range(source.dim()) if source.size(d) > 1), key=source.stride, default=0)
    runs_along_inputs = fastest in dims
    vector = 1
    if runs_along_inputs:
        width, height = num_inputs, num_outputs
        if source.is_contiguous() and len(dims) == source.dim() and width > 128:
            width //= 4
    else:
        vector = next((v for v in (4, 2) if source.size(fastest) % v == 0), 1)
        width, height = num_outputs // vector, num_inputs
    threads = MAX_REDUCE_THREADS // vector
    wide, tall = (min(_last_power_of_two(size), threads) for size in (width, height))
    block_width = min(wide, 32)
    block_height = min(tall, threads // block_width)
    block_width = min(wide, threads // block_height)

    input_step, output_step = (block_width, 1) if runs_along_inputs else (1, block_width)
    if math.ceil(num_inputs / input_step) < min(block_height * 16, MAX_VALUES_PER_THREAD):
        return 0  # each warp has its own outputs
    input_step *= block_height
    values = math.ceil(num_inputs / input_step)
    grid = math.ceil(num_outputs / vector / output_step)
    wanted_grid = gpu.num_multiprocessors * (gpu.threads_per_multiprocessor // (block_width * block_height))
    if values < MAX_VALUES_PER_THREAD or grid > wanted_grid:
        return 0
    enough = math.ceil(values / MIN_VALUES_PER_THREAD)
    blocks = max(min(math.ceil(wanted_grid / grid), enough), math.ceil(values / MAX_VALUES_PER_THREAD))
    if blocks <= 1:
        return 0
    return element_bytes * num_outputs * blocks * (1 if runs_along_inputs else block_width * vector)


def _reduced(tensor: torch.Tensor, dims: Any) -> set[int]:
    if dims is None or dims == []:
        return set(range(tensor.dim()))
    return {dim % tensor.dim() for dim in ([dims] if isinstance(dims, int) else dims)}


def _last_power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)


def norm(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """Norms are reductions; their second argument is the order."""
    return reduction((args[0], args[2] if len(args) > 2 else None), out, gpu)


def cudnn_attention_backward(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """The query's gradient in float32, a row sum per query, and keys' and values' gradients for every head."""
    return [[_query_sums(args[1]) + _spread_over_heads(args[1], args[2])]]


def flash_attention_backward(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """As cuDNN's, with rows and head sizes rounded up."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    rows, width = _round_up(rows, 128), _round_up(width, 32)
    return [[int(batch * heads * rows * (width + 1) * 4) + _spread_over_heads(query, key)]]


def efficient_attention_backward(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """The product of output and gradient in float32; in half precision, sums for keys and values in float32."""
    query, key = args[1], args[2]
    if query.dtype is torch.float32:
        return [[_query_sums(query)]]
    batch, heads, rows, width = key.shape
    rows = _round_up(rows, 64)
    return [[2 * batch * heads * rows * width * 4 + batch * heads * rows * 4]]


def _query_sums(query: torch.Tensor) -> int:
    return query.numel() * 4 + query.numel() // query.size(-1) * 4


def _spread_over_heads(query: torch.Tensor, key: torch.Tensor) -> int:
    if query.size(1) == key.size(1):
        return 0
    return 2 * key.numel() // key.size(1) * query.size(1) * key.element_size()


def embedding_backward(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """Rows of float32 for each run of equal words, after sorting the words."""
    words, num_words = args[1].numel(), args[2]
    if words <= SORTED_FROM:
        return []
    partial = words // 10 + min(words, num_words)
    sorting = words * 8 * 6
    return [[int(partial * out.size(-1) * 4), sorting]]


def convolution(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """cuDNN computes with channels last, at least eight of them: input, output and weights are transposed."""
    source, weight = args[0], args[1]
    if _is_plain_product(weight, args[3]) and math.prod(source.shape[2:]) % 4 == 0:
        return []
    if source.dim() == 4 and source.is_contiguous(memory_format=torch.channels_last):
        return []
    return [[_turned(source) + _turned(out) + _turned(weight)]]


def convolution_backward(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """The same for the gradient; the weights' gradient is summed in float32, and the bias is a separate sum."""
    gradient, source, weight = args[0], args[1], args[2]
    copied = [] if gradient.is_contiguous() else [gradient.numel() * gradient.element_size()]
    bias = [[_reduction_bytes(gradient, [0, *range(2, gradient.dim())], out[2], gpu)]] if out[2] is not None else []
    if _is_plain_product(weight, args[4]) and math.prod(source.shape[2:]) % 8 == 0:
        return [[*copied, 32 * MIB], *bias]
    summed = max(4 * _turned(weight), 6 * MIB)
    if source.dim() == 4 and source.is_contiguous(memory_format=torch.channels_last):
        return [[summed], *bias]
    turned = _turned(source) + _turned(gradient)
    towards_input = [[*copied, turned + _turned(weight)]] if out[0] is not None else []
    return [*towards_input, [*copied, turned + summed], *bias]


def _is_plain_product(weight: torch.Tensor, stride: Any) -> bool:
    return math.prod(weight.shape[2:]) == 1 and math.prod(stride) == 1


def _turned(tensor: torch.Tensor) -> int:
    return tensor.numel() // tensor.size(1) * _round_up(tensor.size(1), 8) * tensor.element_size()


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def layer_norm_backward(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """Gradient and input are copied if they are not contiguous."""
    return [[one.numel() * one.element_size() for one in args[:2] if not one.is_contiguous()]]


def safe_softmax(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """The masked elements, one byte each."""
    return [[out.numel()]]


def softmax_backward(args: tuple[Any, ...], out: Any, gpu: Gpu) -> Sizes:
    """The product of gradient and output, before its rows are summed."""
    return [[out.numel() * out.element_size()]]


RULES: dict[Any, Rule] = {
    aten.sum.dim_IntList: reduction,
    aten.sum.default: reduction,
    aten.mean.dim: reduction,
    aten.mean.default: reduction,
    aten.linalg_vector_norm.default: norm,
    aten._scaled_dot_product_cudnn_attention_backward.default: cudnn_attention_backward,
    aten._scaled_dot_product_flash_attention_backward.default: flash_attention_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: efficient_attention_backward,
    aten.embedding_dense_backward.default: embedding_backward,
    aten._safe_softmax.default: safe_softmax,
    aten._softmax_backward_data.default: softmax_backward,
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.native_layer_norm_backward.default: layer_norm_backward,
}
