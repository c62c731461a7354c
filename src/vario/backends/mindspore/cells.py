"""Inputs and outputs of cells, and the gradients that flow through them, in PyNative mode."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

from mindspore import Parameter, Tensor, nn

from vario.backends.mindspore import taps
from vario.backends.nested_tensors import inputs, leaves
from vario.backends.protocols.observing import Observer

log = logging.getLogger("vario")

_MOST_NAMED = 6
_MOST_RECENT = 4


class CellTensors:
    """Hooks on the chosen cells, in place only in steps that record something."""

    def __init__(self, cells: Mapping[str, Any], roots: Collection[Any]) -> None:
        """The loop itself tells of the calls of those in `roots`: when a step begins they are already being called."""
        self._roots = roots
        self._cells = {name: cell for name, cell in cells.items() if has_construct(cell)}
        self.values: Observer | None = None
        self.gradients: Observer | None = None
        self.is_in_backward = False
        """Inside backward a forward is a recomputation: its values were seen before."""
        self._handles: list[Any] = []
        self._hooked: tuple[bool, bool] = (False, False)
        self._input_paths: dict[str, list[str]] = {}
        self._fired: set[str] = set()
        self._recent: deque[tuple[Any, int]] = deque(maxlen=_MOST_RECENT)
        """The latest tensors and their rows: what a cell returns is often what the next one gets."""
        self._followed: deque[tuple[Any, list[str]]] = deque(maxlen=_MOST_RECENT)
        """The latest tensors whose gradients are followed, and what each is called."""
        self.separates_gradients = False
        """Whether the gradient of an input is what comes through its cell, not the sum over all users of the tensor.
        MindSpore tells of it by operations that wait for everything before them, which takes much longer."""
        self._is_checked = False

    def step_began(self) -> None:
        """Hook the cells if this step is recorded, and leave them alone otherwise."""
        wanted = (_is_watching(self.values), _is_watching(self.gradients))
        if wanted == self._hooked:
            return
        self.clear()
        self._hooked = wanted
        if not any(wanted):
            return
        for name, cell in self._cells.items():
            if not any(cell is root for root in self._roots):
                self._handles.append(cell.register_forward_pre_hook(partial(self._called, name), with_kwargs=True))
            self._handles.append(cell.register_forward_hook(partial(self._returned, name)))
            if wanted[1] and self.separates_gradients:
                self._handles.append(cell.register_backward_hook(partial(self._went_back, name)))

    def clear(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._recent.clear()
        self._followed.clear()
        self._hooked = (False, False)

    def step_ended(self) -> None:
        """Drop what was seen; after the first recorded step, name the cells whose values never came."""
        self._recent.clear()
        self._followed.clear()
        if self._is_checked or not any(self._hooked) or not self._fired:
            return
        self._is_checked = True
        missing = [name for name in self._cells if name not in self._fired]
        if missing:
            names = ", ".join(f"'{name}'" for name in missing[:_MOST_NAMED])
            more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
            log.warning(
                "activation: no values came from %s%s in the first recorded step. A cell that is not called in "
                "training has none; neither has one with a `bprop` of its own, which MindSpore does not hook.",
                names,
                more,
            )

    def root_called(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take the inputs of an outermost cell."""
        if name in self._cells and any(self._hooked):
            self._called(name, self._cells[name], args, kwargs)

    def _called(self, name: str, cell: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # Before the call: a cell may change its inputs in place.
        self._look(name, lambda: inputs(Tensor, args, kwargs), is_input=True)

    def _returned(self, name: str, cell: Any, args: Any, output: Any) -> None:
        self._look(name, lambda: leaves(Tensor, output, "output"), is_input=False)

    def _look(self, name: str, tensors: Callable[[], Iterable[tuple[str, Any]]], is_input: bool) -> None:
        if not taps.is_recording():
            return
        began = perf_counter()
        try:
            found = list(tensors())
            if self._hooked[1] and not self.separates_gradients:
                for path, tensor in found:
                    self._follow(f"{name}:{path}", tensor)
            if self.is_in_backward:
                return
            if is_input:
                self._input_paths[name] = [path for path, _ in found]
            else:
                self._fired.add(name)
            if self.values is not None and self.values.watching:
                for path, tensor in found:
                    self._observe(self.values, f"{name}:{path}", tensor)
        except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything
            self._failed(error)
        self._took(self.values, began)

    def _observe(self, observer: Observer, target: str, tensor: Any) -> None:
        known = next((row for seen, row in self._recent if seen is tensor), None)
        if known is not None:
            observer.add_row(target, known)
        elif (row := observer.observe(target, tensor)) is not None:
            self._recent.append((tensor, row))

    def _follow(self, target: str, tensor: Any) -> None:
        """Take the gradient of this tensor when backward has computed it."""
        known = next((targets for seen, targets in self._followed if seen is tensor), None)
        if known is not None:
            known.append(target)
        elif not isinstance(tensor, Parameter):
            targets = [target]
            tensor.register_hook(lambda gradient: self._came_back(targets, gradient))
            self._followed.append((tensor, targets))

    def _came_back(self, targets: list[str], gradient: Any) -> None:
        observer = self.gradients
        if observer is None or not observer.watching:
            return
        began = perf_counter()
        try:
            row = observer.observe(targets[0], gradient)
            if row is not None:
                for target in targets[1:]:
                    observer.add_row(target, row)
        except Exception as error:  # noqa: BLE001 - the failure policy
            self._failed(error)
        self._took(observer, began)

    def _went_back(self, name: str, cell: Any, grad_input: Any, grad_output: Any) -> None:
        observer = self.gradients
        if observer is None or not observer.watching:
            return
        began = perf_counter()
        try:
            paths = self._input_paths.get(name, [])
            for path, tensor in (*_named(grad_output, None, "output"), *_named(grad_input, paths, "input")):
                observer.observe(f"{name}:{path}", tensor)
        except Exception as error:  # noqa: BLE001 - the failure policy
            self._failed(error)
        self._took(observer, began)

    def _failed(self, error: Exception) -> None:
        for observer in (self.values, self.gradients):
            if observer is not None:
                observer.failed(error)

    @staticmethod
    def _took(observer: Observer | None, began: float) -> None:
        if observer is not None:
            observer.took(perf_counter() - began)


def _named(gradients: Any, paths: list[str] | None, what: str) -> list[tuple[str, Any]]:
    """Return gradients with the paths of the tensors they belong to; those that nothing needs are None."""
    every = gradients if isinstance(gradients, tuple) else (gradients,)
    if paths is None or len(paths) != len(every):
        paths = [what] if len(every) == 1 else [f"{what}.{number}" for number in range(len(every))]
    return [(path, one) for path, one in zip(paths, every, strict=True) if isinstance(one, Tensor)]


def has_construct(cell: Any) -> bool:
    """Whether a cell is called itself; a list of cells is not."""
    return type(cell).construct is not nn.Cell.construct and not isinstance(cell, nn.CellList)


def _is_watching(observer: Observer | None) -> bool:
    return observer is not None and observer.watching
