"""Where compiled graphs leave the Summaries of their tensors: small parameters that probes inside the graph fill.

Nothing but a parameter can be written from inside a graph. A probe computes the columns of a Summary and stores them in
its slot, together with the number of the recorded step, which it reads from a switch: 0 switches it off. So probes are
switched without compiling again, and a slot that was not filled in this step is noticed. Forward and backward need
switches of their own: with a shared one MindSpore does not compile the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, Tensor, nn, ops
from mindspore.graph.api import _no_grad

from vario.backends.mindspore.device_rows import MEASURED, device_row
from vario.backends.mindspore.tensors import is_on_host, on_host
from vario.core.records import COUNT, MAX, MIN, NANS, SUM, SUM_SQUARES, Table, empty_table

_WIDTH = len(MEASURED) + 2
"""The measured columns, the count of elements and the number of the step."""
_EPS = 1e-8
_LARGEST = 1 << 24
"""Step numbers up to here are exact as float32."""


class Switch:
    """Switches all probes of one kind, at run time."""

    def __init__(self, name: str) -> None:
        self.parameter = Parameter(Tensor(0.0, mindspore.float32), name=f"vario.{name}", requires_grad=False)
        self.stamp = 0.0

    def set(self, step: int | None) -> None:
        """Switch the probes on for a step; None: off."""
        stamp = 0.0 if step is None else float(step % _LARGEST + 1)
        if stamp != self.stamp:
            self.stamp = stamp
            with _no_grad():  # not `set_data`, which compiled functions do not notice
                ops.assign(self.parameter, Tensor(stamp, mindspore.float32))


class Slot:
    """One row per tensor of a probe."""

    def __init__(self, name: str, num_rows: int = 1) -> None:
        # Never given other data: the graph would go on writing into the memory it was compiled with.
        empty = Tensor(np.zeros((num_rows, _WIDTH), np.float32))
        self.parameter = Parameter(empty, name=f"vario.slot.{name}", requires_grad=False)


class Slots:
    """All slots of a model, read at once."""

    def __init__(self) -> None:
        self._slots: list[tuple[Slot, Switch]] = []
        self._ends: list[int] = []

    def add(self, name: str, switch: Switch, num_rows: int = 1) -> tuple[Any, int]:
        """Make a slot; return its parameter and the number of its first row."""
        slot = Slot(f"{len(self._slots)}.{name}", num_rows)
        first = self._ends[-1] if self._ends else 0
        self._slots.append((slot, switch))
        self._ends.append(first + num_rows)
        return slot.parameter, first

    def read(self) -> SlotRows:
        """Return what the slots contain now."""
        parameters = [slot.parameter for slot, _ in self._slots]
        if not parameters:
            return SlotRows(np.zeros((0, _WIDTH)), np.zeros(0))
        stamps = np.concatenate([np.full(len(slot.parameter), switch.stamp) for slot, switch in self._slots])
        if is_on_host():
            return SlotRows(np.concatenate([on_host(one) for one in parameters]), stamps)
        with _no_grad():
            return SlotRows(ops.concat(parameters), stamps)


class SlotRows:
    """The content of all slots after one step."""

    def __init__(self, values: Any, stamps: npt.NDArray[np.float64]) -> None:
        self._values = values
        self._stamps = stamps
        self._table: Table | None = None

    def table(self) -> Table:
        """Return Summaries; the count of one that was not filled in this step is NaN. Waits for the device."""
        if self._table is None:
            values = self._values if isinstance(self._values, np.ndarray) else on_host(self._values)
            found = empty_table(len(values))
            found[:, list(MEASURED)] = values[:, : len(MEASURED)]
            found[:, COUNT] = values[:, -2]
            has_none = found[:, MIN] > found[:, MAX]
            found[has_none, MIN] = found[has_none, MAX] = np.nan
            found[(values[:, -1] != self._stamps) | (self._stamps == 0), COUNT] = np.nan
            self._table = found
        return self._table


class Reduced:
    """A tensor inside a graph, of which only the Summary is known."""

    def __init__(self, rows: SlotRows, number: int, shape: tuple[int, ...] = (1,), dtype: Any = None) -> None:
        self._rows = rows
        self._number = number
        self.shape = shape
        self.dtype = dtype

    def row(self, scale: float | None) -> Callable[[], Table]:
        """Return a call that waits for the Summary, divided by `scale`."""

        def fetch() -> Table:
            found: Table = self._rows.table()[self._number].copy()
            if scale is not None:
                found[[SUM, MIN, MAX]] /= scale
                found[SUM_SQUARES] /= scale**2
            if found[NANS] > 0:
                found[[SUM, SUM_SQUARES]] = np.nan
            return found

        return fetch

    @property
    def was_filled(self) -> bool:
        """Whether its probe ran in this step; waits for the device."""
        return not np.isnan(self._rows.table()[self._number, COUNT])


def _columns(tensor: Any, stamp: Any, eps: float) -> Any:
    """Return a slot's row for a tensor."""
    count = ops.cast(ops.size(tensor), mindspore.float32)
    return ops.concat((device_row(tensor, eps), ops.reshape(count, (1,)), ops.reshape(stamp, (1,))))


def output_probe(slot: Any, switch: Any, eps: float) -> Callable[..., None]:
    """Return a forward hook that stores the Summary of a cell's output, or of the first tensor in it."""

    def after_forward(cell, args, output):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - compiled
        if switch > 0:
            seen = output
            if isinstance(output, (tuple, list)):
                seen = output[0]
            ops.assign(slot, ops.expand_dims(_columns(seen, switch, eps), 0))

    return after_forward


def output_gradient_probe(slot: Any, switch: Any, eps: float) -> Callable[..., None]:
    """Return a backward hook that stores the Summary of the gradient of a cell's output."""

    def before_backward(cell, gradients):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - compiled
        if switch > 0:
            ops.assign(slot, ops.expand_dims(_columns(gradients[0], switch, eps), 0))

    return before_backward


class GradientSlots:
    """Where the gradients of a training cell are left: as Summaries on a device, as they are on the host.

    On the host the kernels that would reduce them take longer than copying them, and NumPy reads the copies in place.
    """

    def __init__(self, slots: Slots, switch: Switch, parameters: Sequence[Any], what: str) -> None:
        self._parameters = parameters
        self._stamp, self._first = slots.add(what, switch, 1 if is_on_host() else len(parameters))
        self._copies: tuple[Any, ...] = ()
        if is_on_host():
            named = (f"vario.gradient.{what}.{number}" for number in range(len(parameters)))
            self._copies = tuple(
                Parameter(ops.zeros(one.shape, one.dtype), name=name, requires_grad=False)
                for one, name in zip(parameters, named, strict=True)
            )

    def storing(self, switch: Any) -> Callable[[Any], Any]:
        """Return a function for compiled code that stores gradients, if the probes are on."""
        stamp, copies = self._stamp, self._copies

        def store(gradients):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - compiled
            if switch > 0:
                for number, gradient in enumerate(gradients):
                    ops.assign(copies[number], ops.cast(gradient, copies[number].dtype))
                ops.assign(stamp, ops.expand_dims(_columns(switch, switch, 0.0), 0))
            return gradients

        def reduce(gradients):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - compiled
            if switch > 0:
                found: Any = ()
                for gradient in gradients:
                    found += (_columns(gradient, switch, _EPS),)
                ops.assign(stamp, ops.stack(found))
            return gradients

        return store if copies else reduce

    def found(self, rows: SlotRows) -> list[Any]:
        """Return one tensor, or Summary of one, per parameter; none if the probe did not run in this step."""
        if not self._copies:
            return [
                Reduced(rows, self._first + place, tuple(one.shape), one.dtype)
                for place, one in enumerate(self._parameters)
            ]
        return list(self._copies) if Reduced(rows, self._first).was_filled else []


def reducer_probe(before: Any, after: Any, inner: Any) -> Any:
    """Return a cell that does what a training cell's `grad_reducer` does, and stores gradients around it.

    What is stored where is not an attribute of the cell: it would become part of checkpoints.
    """

    class ReducerProbe(nn.Cell):  # type: ignore[misc]
        """Stands in for a gradient reducer."""

        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.inner = inner

        def construct(self, gradients):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - compiled
            """Store the gradients before and after they are reduced."""
            return after(self.inner(before(gradients)))

    return ReducerProbe()


def unchanged(gradients):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201 - compiled
    """Return the gradients: there is nothing to store."""
    return gradients


def names_in_short(names: Sequence[str], most: int = 6) -> str:
    """Return the first few names, quoted."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(f"'{name}'" for name in names[:most]) + more
