"""Dead units: in activation functions those never positive, in layers the inputs that are always zero."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vario.backends.protocols.events import Undo
from vario.backends.protocols.observing import Observer
from vario.backends.torch.loop import hooks, module_hooks
from vario.backends.torch.loop.sparse_hooks import SparseHooks
from vario.backends.torch.naming import entered
from vario.backends.torch.reduce.tensors import aside, local_part

MIN_ROWS = 8
"""A unit that is inactive in fewer rows than this may just be rarely active."""

_ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish),
    *(nn.ELU, nn.CELU, nn.SELU, nn.Threshold),
)
"""Those that are inactive below zero; a leaky one passes gradients on both sides, and tanh has two."""
_NOT_SILENT = frozenset({"LinearActivation", "SqrtSoftplusActivation", "XIELUActivation", "LaplaceActivation"})
_CONVOLUTIONS = (nn.modules.conv._ConvNd,)


@dataclass(eq=False)
class _Activity:
    """Which units of one module have been active in the step so far."""

    spoke: torch.Tensor
    num_rows: int


@dataclass(frozen=True, eq=False)
class _Seen:
    """A tensor whose units were read along one axis."""

    reference: weakref.ref[torch.Tensor]
    version: int
    axis: int
    spoke: torch.Tensor | None
    """Which of its units are not zero; None if an activation function counts it."""

    def is_of(self, tensor: torch.Tensor, axis: int) -> bool:
        return self.reference() is tensor and self.version == _version(tensor) and self.axis == axis


class Units:
    """Tracks which units of activation functions and of layers' inputs are active at all in a step."""

    def __init__(self, observer: Observer, is_training: Callable[[], bool]) -> None:
        self._observer = observer
        self._is_training = is_training
        self.hooks = SparseHooks(lambda: observer.watching)
        self._names: dict[int, str] = {}
        self._activity: dict[str, _Activity] = {}
        self._seen: dict[int, _Seen] = {}

    def attach(self, modules: Mapping[str, nn.Module], roots: Mapping[str, nn.Module]) -> Undo:
        """Hook those of these modules that are activation functions or layers; inside compiled graphs hooks do nothing.

        There the compiler would have to keep tensors that it fuses away.
        """
        undos = hooks.Undos()
        undos.add(self.hooks.clear)
        outermost, first = set(roots.values()), set(entered(roots))
        for name, module in modules.items():
            if is_activation(module):
                undos.add(module_hooks.after_forward(module, self._after, _returned))
            elif _unit_axis(module, 2) is not None:
                undos.add(module_hooks.before_forward(module, self._before, _called))
            else:
                continue
            self._names[id(module)] = name
            if module not in outermost:
                self.hooks.add(module, (_called, _returned), module in first)
        return undos

    def dead(self) -> tuple[list[str], list[torch.Tensor]]:
        """Return modules and the share of their units inactive in all passes of the step; start the next step."""
        activity, self._activity = self._activity, {}
        self._seen.clear()
        found = {name: units for name, units in activity.items() if units.num_rows >= MIN_ROWS}
        with torch.no_grad():
            return list(found), [1.0 - units.spoke.float().mean() for units in found.values()]

    @property
    def _wants(self) -> bool:
        return self._observer.watching and self._is_training() and hooks.current_backward() == -1

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Take the output of an activation function: a unit that is positive anywhere is active."""
        if self._wants and isinstance(output, torch.Tensor):
            axis = 1 if output.ndim > 3 else output.ndim - 1
            self._guarded(lambda: self._count(module, output, axis, is_output=True))

    def _before(self, module: nn.Module, args: tuple[Any, ...], kwargs: Any) -> None:
        """Take the input of a layer: a unit that is not zero anywhere is active."""
        if not self._wants or not args or not isinstance(args[0], torch.Tensor):
            return
        tensor = args[0]
        axis = _unit_axis(module, tensor.ndim)
        # A tensor that requires no gradient is the batch itself, whose features may well be zero; reentrant
        # checkpointing, which disables gradients in its first forward, shows nothing about that.
        if axis is not None and (tensor.requires_grad or not torch.is_grad_enabled()):
            self._guarded(lambda: self._count(module, tensor, axis, is_output=False))

    def _guarded(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - the failure policy
            self._observer.failed(error)

    def _count(self, module: nn.Module, tensor: torch.Tensor, axis: int, *, is_output: bool) -> None:
        seen = self._seen.get(id(tensor))
        known = seen if seen is not None and not is_output and seen.is_of(tensor, axis) else None
        if known is not None and known.spoke is None:
            return  # the activation function that made it counts it
        part = local_part(tensor)
        if part is None or not _has_units(part, is_output):
            return
        if not 0 <= axis < part.ndim or not part.numel():
            return
        if known is not None and known.spoke is not None:
            spoke = known.spoke
        else:
            spoke = _spoke(part, axis, is_output)
            self._seen[id(tensor)] = _Seen(weakref.ref(tensor), _version(tensor), axis, None if is_output else spoke)
        self._add(self._names[id(module)], spoke, part.numel() // part.shape[axis])

    def _add(self, name: str, spoke: torch.Tensor, num_rows: int) -> None:
        units = self._activity.get(name)
        if units is not None and units.spoke.shape == spoke.shape and units.spoke.device == spoke.device:
            units.spoke = units.spoke | spoke
            units.num_rows += num_rows
        else:
            self._activity[name] = _Activity(spoke, num_rows)


@module_hooks.module_hook
def _called(module: nn.Module, args: Any, *kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        module_hooks.tell(_called, module, args, *kwargs)


@module_hooks.module_hook
def _returned(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
    if not torch.compiler.is_compiling():
        module_hooks.tell(_returned, module, args, kwargs, output)


def is_activation(module: nn.Module) -> bool:
    """Whether a module is an activation function whose units can be dead."""
    if isinstance(module, _ACTIVATIONS):
        return True
    kind = type(module)
    return kind.__module__ == "transformers.activations" and kind.__name__ not in _NOT_SILENT


def _unit_axis(module: nn.Module, ndim: int) -> int | None:
    """Return the axis of a layer's input with its units; None if it is not a layer."""
    if isinstance(module, _CONVOLUTIONS):
        return ndim - len(module.kernel_size) - 1
    name = type(module).__name__
    # Runtimes have their own linear layers, and GPT-2 one that is called a convolution.
    is_linear = isinstance(module, nn.Linear) or name.endswith("Linear") or name == "Conv1D"
    return ndim - 1 if is_linear else None


def _has_units(tensor: torch.Tensor, is_output: bool) -> bool:
    """Whether the elements can be compared with zero; a complex number is never positive."""
    return (not is_output and tensor.is_complex()) or (tensor.is_floating_point() and tensor.dtype.itemsize >= 2)


def _spoke(tensor: torch.Tensor, axis: int, is_output: bool) -> torch.Tensor:
    """Return which units are positive, or not zero, in any row; a unit with a NaN is not dead."""
    others = [other for other in range(tensor.ndim) if other != axis]
    with aside(tensor.device):
        if tensor.is_complex():
            tensor = tensor.abs()  # which can be ordered
        if not others:
            return ~(tensor <= 0) if is_output else tensor != 0
        largest = tensor.amax(others)
        return ~(largest <= 0) if is_output else (largest != 0) | (tensor.amin(others) != 0)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
