"""Recurrent layers as cuDNN runs them, and single cells as torch's own CUDA kernels do, for fake tensors.

A layer keeps its input, its output and what cuDNN reserves; the CPU's implementation, composed of many small operators,
keeps other tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from vario.backends.gpus import Gpu
from vario.backends.torch.memory_simulation.cudnn_sizes import DROPOUT_STATE_BYTES, GATES, Recurrence

aten = torch.ops.aten
FLATTENED = (torch.float32, torch.float16, torch.float64)
"""Dtypes whose weights torch puts into one buffer when a module is moved to a GPU."""
CELL_KEEPS = {"lstm": 4, "gru": 5}
"""Numbers per unit that the kernel of a cell keeps besides its gates."""


def operators(gpu: Gpu) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield replacements for torch's operators, by name."""
    state = _DropoutState()
    for name, kind in (("lstm", "lstm"), ("gru", "gru"), ("rnn_tanh", "rnn"), ("rnn_relu", "rnn")):
        yield f"{name}.input", partial(_layers, gpu, state, kind)
        yield f"{name}.data", partial(_packed_layers, gpu, state, kind)
    yield "lstm_cell", _lstm_cell
    yield "gru_cell", _gru_cell
    yield "_pad_packed_sequence", _pad
    yield "_pack_padded_sequence_backward", _unpack


class _DropoutState:
    """Random numbers of dropout between layers: created once, and kept for good."""

    def __init__(self) -> None:
        self._held: torch.Tensor | None = None

    def need(self) -> None:
        if self._held is None:
            self._held = torch.empty(DROPOUT_STATE_BYTES, dtype=torch.uint8)


def _layers(
    gpu: Gpu,
    state: _DropoutState,
    kind: str,
    source: torch.Tensor,
    hidden: Any,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[torch.Tensor, ...]:
    """Run `lstm.input` and the like."""
    num_rows, num_samples = source.numel() // source.size(-1), source.size(0 if batch_first else 1)
    has_dropout = bool(dropout) and train and num_layers > 1
    form = (num_rows, num_samples, num_layers, 1 + bidirectional, has_dropout, False)
    return _run(gpu, state, kind, source, hidden, weights, form, batch_first, has_biases)


def _packed_layers(
    gpu: Gpu,
    state: _DropoutState,
    kind: str,
    source: torch.Tensor,
    batch_sizes: torch.Tensor,
    hidden: Any,
    weights: Sequence[torch.Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    """Run `lstm.data` and the like: sequences of several lengths, concatenated."""
    first = hidden[0] if kind == "lstm" else hidden
    has_dropout = bool(dropout) and train and num_layers > 1
    form = (source.size(0), first.size(1), num_layers, 1 + bidirectional, has_dropout, True)
    return _run(gpu, state, kind, source, hidden, weights, form, False, has_biases)


def _run(
    gpu: Gpu,
    state: _DropoutState,
    kind: str,
    source: torch.Tensor,
    hidden: Any,
    weights: Sequence[torch.Tensor],
    form: tuple[int, int, int, int, bool, bool],
    batch_first: bool,
    has_biases: bool,
) -> tuple[torch.Tensor, ...]:
    num_rows, num_samples, num_layers, num_directions, has_dropout, is_packed = form
    states = list(hidden) if kind == "lstm" else [hidden]
    casts = torch.is_autocast_enabled("cpu")
    # Autocast runs recurrent layers in float16, even if bfloat16 was requested.
    dtype = torch.float16 if casts else weights[0].dtype
    call = Recurrence(
        kind=kind,
        num_rows=num_rows,
        num_samples=num_samples,
        input_size=source.size(-1),
        hidden_size=weights[0].size(0) // GATES[kind],
        output_size=weights[1].size(1),
        num_layers=num_layers,
        num_directions=num_directions,
        element_bytes=dtype.itemsize,
        has_dropout=has_dropout,
        is_packed=is_packed,
        is_half=dtype is torch.float16,
    )
    if has_dropout:
        state.need()
    if casts or dtype not in FLATTENED:
        weights = _Flat.apply(call.flat_weights, dtype, *weights)
        states = [one.to(dtype) for one in states]
        source = source.to(dtype)
    sizes = call.workspace_bytes(gpu), call.workspace_bytes(gpu, is_forward=False)
    how = _How(call, sizes, batch_first, has_biases, len(states))
    return tuple(_Layers.apply(how, source, *states, *weights))


@dataclass(frozen=True)
class _How:
    """How layers are run."""

    call: Recurrence
    workspace_bytes: tuple[int, int]
    """Forward and backward."""
    batch_first: bool
    has_biases: bool
    num_states: int


class _Flat(torch.autograd.Function):
    """Weights copied into one buffer of another dtype, or of one that torch does not flatten itself."""

    @staticmethod
    def forward(ctx: Any, num_elements: int, dtype: torch.dtype, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.dtype = weights[0].dtype
        return tuple(_cut(weights[0].new_empty(num_elements, dtype=dtype), weights))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        return None, None, *(gradient.to(ctx.dtype) for gradient in gradients)


class _Layers(torch.autograd.Function):
    """All layers and directions in one call of cuDNN."""

    @staticmethod
    def forward(ctx: Any, how: _How, source: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        states, weights = rest[: how.num_states], rest[how.num_states :]
        turned = torch.empty_like(source) if how.batch_first else None
        shape = [*source.shape[:-1], how.call.output_size * how.call.num_directions]
        if how.batch_first:
            shape[:2] = shape[1], shape[0]
        output = source.new_empty(shape)
        made = [torch.empty_like(one) for one in states]
        workspace = torch.empty(how.workspace_bytes[0], dtype=torch.uint8)
        kept = torch.empty(how.call.kept_bytes, dtype=torch.uint8)
        del workspace, turned
        ctx.how = how
        ctx.save_for_backward(source, output, kept, *states, *weights)
        return (output.transpose(0, 1) if how.batch_first else output), *made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, *of_states: torch.Tensor) -> tuple[Any, ...]:
        how = ctx.how
        source, _, _, *rest = ctx.saved_tensors
        states, weights = rest[: how.num_states], rest[how.num_states :]
        turned = torch.empty_like(source) if how.batch_first else None
        gradient = (gradient.transpose(0, 1) if how.batch_first else gradient).contiguous()
        towards = [torch.empty_like(one) for one in (source, *states)]
        workspace = torch.empty(how.workspace_bytes[1], dtype=torch.uint8)
        del workspace, gradient, turned
        found: list[Any] = [None] * len(weights)
        if any(ctx.needs_input_grad[2 + how.num_states :]):
            turned = torch.empty_like(source) if how.batch_first else None
            found = list(_cut(weights[0].new_empty(how.call.flat_weights), weights))
            workspace = torch.empty(how.workspace_bytes[1], dtype=torch.uint8)
            if not how.has_biases:
                found = [one.clone() for one in found]  # without the placeholders for biases
            del workspace, turned
        return None, *towards, *found


def _cut(buffer: torch.Tensor, weights: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    start = 0
    for weight in weights:
        yield buffer[start : start + weight.numel()].view(weight.shape)
        start += weight.numel()


def _pad(
    rows: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, value: Any, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of several lengths padded side by side again."""
    num_steps = max(length, batch_sizes.size(0))
    num_samples = int(batch_sizes[0])
    padded = _Padded.apply(rows, (num_steps, num_samples))
    lengths = torch.empty(num_samples, dtype=torch.int64)
    return (padded.transpose(0, 1) if batch_first else padded), lengths


class _Padded(torch.autograd.Function):
    """Copies rows into their places; the backward pass copies the whole for each step."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, places: tuple[int, int]) -> torch.Tensor:
        ctx.shape = rows.shape
        return rows.new_empty(*places, *rows.shape[1:])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        whole = torch.empty_like(gradient)
        summed = gradient.new_empty(ctx.shape)
        one = torch.empty_like(summed)
        del whole, one
        return summed, None


def _unpack(gradient: torch.Tensor, shape: Sequence[int], batch_sizes: torch.Tensor, first: bool) -> torch.Tensor:
    """Return the gradient of sequences before they were packed."""
    return gradient.new_zeros(shape)


def _lstm_cell(
    source: torch.Tensor,
    states: Sequence[torch.Tensor],
    to_input: torch.Tensor,
    to_hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run two products, then one kernel for all gates."""
    gates = _gates(source, states[0], to_input, to_hidden)
    made = _Cell.apply("lstm", gates[0], gates[1], states[1].to(gates[0].dtype), input_bias, hidden_bias)
    return made[0], made[1]


def _gru_cell(
    source: torch.Tensor,
    state: torch.Tensor,
    to_input: torch.Tensor,
    to_hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run the same with one state."""
    gates = _gates(source, state, to_input, to_hidden)
    made = _Cell.apply("gru", gates[0], gates[1], state.to(gates[0].dtype), input_bias, hidden_bias)
    return made[0]  # type: ignore[no-any-return]


def _gates(source: torch.Tensor, state: torch.Tensor, to_input: torch.Tensor, to_hidden: torch.Tensor) -> Any:
    linear = torch.nn.functional.linear
    return linear(source, to_input), linear(state, to_hidden)


class _Cell(torch.autograd.Function):
    """The kernel of one cell: keeps both products and the gates."""

    @staticmethod
    def forward(
        ctx: Any,
        kind: str,
        first: torch.Tensor,
        second: torch.Tensor,
        state: torch.Tensor,
        *biases: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        kept = first.new_empty(state.size(0), CELL_KEEPS[kind] * state.size(1))
        made = [torch.empty_like(state) for _ in range(2 if kind == "lstm" else 1)]
        ctx.kind = kind
        ctx.has_biases = [bias is not None for bias in biases]
        ctx.save_for_backward(first, second, state, kept, *made[1:])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        first, _, state, *_ = ctx.saved_tensors
        towards = torch.empty_like(first)
        # Both products of an LSTM get the same gradient; those of a GRU do not.
        other = towards if ctx.kind == "lstm" else torch.empty_like(first)
        before = torch.empty_like(state)
        biases = [first.new_empty(first.size(1)) if has else None for has in ctx.has_biases]
        return None, towards, other, before, *biases
