"""Inside the cells of a model in PyNative mode: their calls, attention, and the routers of experts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.graph.api import _no_grad
from mindspore.ops.function import nn_func

from vario.backends.mindspore import taps
from vario.backends.mindspore.attention import attention_rows, masked_rows
from vario.backends.mindspore.targets import Targets
from vario.backends.mindspore.tensors import on_host
from vario.backends.module_attributes import is_causal
from vario.backends.protocols.events import Undo
from vario.backends.protocols.observing import Later, Observer
from vario.backends.routers import RouterNames
from vario.core.selector import modules_matching

Call = Callable[[str, tuple[Any, ...]], None]
_ATTENTION = "_scaled_dot_product_attention"
"""What MindSpore's own attention cells call."""
_MOST_SAMPLES = 8


class InsideCells:
    """What probes ask about the cells of a model in training passes."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._called: list[tuple[str, Call]] = []
        self._returned: list[tuple[str, Call]] = []
        self._attention: list[Observer] = []
        self._by_head = False
        self._routers = RouterNames(targets.all_cells, lambda cell: cell.name_cells().items())

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of all cells that match, targets or not; raises if a pattern matches none."""
        return modules_matching(patterns, list(self._targets.all_cells))

    def on_modules_called(self, names: Sequence[str], call: Call) -> None:
        """Call `call` with (name, positional inputs) when one of these cells is called in a training pass."""
        self._called += [(name, call) for name in names]

    def on_modules_returned(self, names: Sequence[str], call: Call) -> None:
        """Call `call` with (name, items) when one of these cells has returned one or several items."""
        self._returned += [(name, call) for name in names]

    def on_attention(self, observer: Observer, by_head: bool = False) -> None:
        """Pass the numbers of the attention that MindSpore's own cells compute to this observer."""
        self._attention.append(observer)
        self._by_head |= by_head

    def attention_rows(
        self, name: str, query: Any, key: Any, order: str, first_only: bool = False, by_head: bool = False
    ) -> dict[str, Any]:
        """Return entropy, largest probability and largest logit of each row of a cell's attention."""
        return attention_rows(query, key, order, is_causal(self._targets.all_cells[name]), first_only, by_head)

    def routers(self) -> list[str]:
        """Return the chosen cells that are routers of experts."""
        return self._routers.names(self._targets.cells)

    def expert_rows(
        self, name: str, returned: Sequence[Any], read: Callable[..., Any] | None = None
    ) -> dict[str, Any] | None:
        """Return `load`, the tokens per expert over the mean, from a router's output; None if it does not say."""
        if read is not None:
            raise ValueError("functions that read routers need torch; name the routers alone")
        tensors = [item for item in returned if isinstance(item, Tensor) and len(item.shape) > 1 and item.size]
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        cell = self._targets.all_cells[name]
        num_experts = self._routers.num_experts(cell, [tensor.shape[-1] for tensor in floats])
        if num_experts is None or num_experts < 2:
            return None
        choices = next((tensor for tensor in tensors if not tensor.is_floating_point()), None)
        with _no_grad():
            if choices is None:
                logits = next((tensor for tensor in floats if tensor.shape[-1] == num_experts), None)
                if logits is None:
                    return None
                choices = ops.topk(logits.astype(mindspore.float32), min(self._routers.top_k(cell), num_experts))[1]
            experts = Tensor(np.arange(num_experts, dtype=np.int32))
            counts = (choices.reshape(-1, 1).astype(mindspore.int32) == experts).astype(mindspore.float32).sum(0)
            load = counts * num_experts / ops.maximum(counts.sum(), Tensor(1.0, mindspore.float32))
            return {"load": load}

    def fetch_later(self, tensor: Any) -> Later:
        """Return a call that waits for a few numbers."""
        return lambda: on_host(tensor)

    def attach(self) -> Undo:
        """Hook the cells followed so far."""
        handles = []
        for name, call in self._called:
            handles.append(self._targets.all_cells[name].register_forward_pre_hook(partial(_before, name, call)))
        for name, call in self._returned:
            handles.append(self._targets.all_cells[name].register_forward_hook(partial(_after, name, call)))
        undo_attention = taps.replace(nn_func, _ATTENTION, self._attending) if self._attention else None

        def undo() -> None:
            while handles:
                handles.pop().remove()
            if undo_attention is not None:
                undo_attention()

        return undo

    def _attending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def attend(query: Any, key: Any, value: Any, attn_mask: Any, *args: Any) -> Any:
            watching = [observer for observer in self._attention if observer.watching and is_training_pass()]
            name = next(self._running(), None) if watching else None
            if name is not None:
                try:
                    bias = attn_mask
                    if args[1]:  # `is_causal`: MindSpore adds this mask, too
                        bias = Tensor(np.tril(np.ones((query.shape[-2], key.shape[-2]), np.float32)))
                    few = slice(None) if bias is not None else slice(_MOST_SAMPLES)
                    rows = masked_rows(query[few], key[few], None, bias, self._by_head)
                    for observer in watching:
                        for what, numbers in rows.items():
                            observer.observe(f"{name}:{what}", numbers)
                except Exception as error:  # noqa: BLE001 - the failure policy
                    for observer in watching:
                        observer.failed(error)
            return original(query, key, value, attn_mask, *args)

        return attend

    def _running(self) -> Iterator[str]:
        """Yield the chosen cells that are running in this thread, innermost first."""
        names = {id(cell): name for name, cell in self._targets.cells.items()}
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code is nn.Cell.__call__.__code__ and id(frame.f_locals["self"]) in names:
                yield names[id(frame.f_locals["self"])]
            frame = frame.f_back  # type: ignore[assignment]


def is_training_pass() -> bool:
    """Whether what runs now is a forward whose gradients will be computed, and no recomputation."""
    return taps.is_recording() and not taps.is_in_backward()


def _before(name: str, call: Call, cell: Any, args: tuple[Any, ...]) -> None:
    if is_training_pass():
        call(name, args)


def _after(name: str, call: Call, cell: Any, args: Any, output: Any) -> None:
    if is_training_pass():
        call(name, tuple(output) if isinstance(output, (tuple, list)) else (output,))
