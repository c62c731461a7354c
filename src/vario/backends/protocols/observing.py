"""How tensors become rows: what reduces them, and how each quantity records them in the step in progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from vario.core.records import Collective, StepId, Table, TensorSpec

Tensor = Any
"""A tensor of the watched framework; the core never looks inside."""


class BatchSize(NamedTuple):
    """How much a batch contains."""

    rows: int
    tokens: int | None
    """None if it is not made of token ids."""


NamedTensors = tuple[Sequence[str], list[Tensor]]
"""Names, and one tensor per name."""

Later = Callable[[], npt.NDArray[Any]]
"""Numbers being copied from a device: the call waits for them, on any thread."""


class Places:
    """The order of a step's rows: `next` is the place of the next one."""

    __slots__ = ("next",)

    def __init__(self) -> None:
        self.next = 0


class Named(NamedTuple):
    """The targets of a list of tensors; a tensor may have several."""

    micro_step: int
    targets: Sequence[str]
    tensors: Sequence[int]
    """For each target: which tensor of the list it is."""
    places: Sequence[int]
    """For each target: its place in the order of the step's rows."""


LateBins = Callable[[], Mapping[str, bytes]]
"""Stored distributions by target, for rows that are computed with the step's record."""

LateRows = Callable[[], tuple[Sequence[str], Table]]
"""Targets and Summaries that are computed with the step's record; the call may wait for a device."""

RowHashes = npt.NDArray[np.uint64]
"""A hash of the content of each row of a batch."""


class Summaries(Protocol):
    """Turns tensors into rows of Summaries; nothing waits for the device until the rows are fetched."""

    device_seconds: float
    """Estimated device time for what was observed; the reader resets it to 0."""

    def observe(self, tensor: Tensor, scale: Tensor | None = None, name: tuple[str, str] | None = None) -> int | None:
        """Reduce one tensor, divided by `scale`; return its row within the step, or None if it cannot be read.

        `name` is the quantity and target of a tensor that occurs again in later steps, to find out if it `is_steady`. A
        row that could not be computed after all has the count NaN.
        """

    def is_steady(self, name: tuple[str, str]) -> bool:
        """Whether tensors of this name keep their values until the end of their pass."""

    def observe_many(self, tensors: list[Tensor], scale: Tensor | None = None, again: str = "") -> Sequence[int | None]:
        """Reduce a list of tensors at once. A later list with the same name `again` replaces the earlier rows."""

    def at_once(self, tensors: list[Tensor]) -> list[float] | None:
        """Return the Summary of all these tensors if their values are on the host; no row is kept. Any thread."""

    def plain_number(self, value: Any) -> float | None:
        """Return a logged value as a number; None if it is a tensor on a device, which has to be observed."""

    def why_skipped(self, tensor: Tensor) -> str:
        """Return why a tensor has no Summary, in words."""

    def collect(self, keep: bool = False) -> Callable[[], Table]:
        """End the step; return a function that waits for the rows and returns them, on any thread.

        With `keep` the step continues and the rows are those it has so far.
        """


class Observer(Protocol):
    """Records one quantity in the step in progress: keeps to its schedule and never raises into training.

    Methods named `observe` reduce tensors; methods named `add` take rows that exist or are made later.
    """

    watching: bool
    """Whether this step is recorded."""

    @property
    def step_id(self) -> StepId:
        """The step and micro-step in progress."""

    def log(self, name: str, value: float) -> None:
        """Log a plain number of this step."""

    def observe(self, target: str, tensor: Tensor, is_latest: bool = False, may_wait: bool = False) -> int | None:
        """Reduce a tensor, keep its row and return it; rows of the same micro-step are merged.

        With `is_latest` the last one of a step counts instead. `may_wait`: nothing reuses the tensor's memory while it
        is referenced, so `observe_together` may be used in later steps if it `is_steady`.
        """

    def is_steady(self, target: str) -> bool:
        """Whether tensors of this target keep their values until the end of their pass."""

    @property
    def places(self) -> Places:
        """The order of the step's rows, to take places for rows that come later."""

    def observe_together(self, tensors: list[Tensor], named: Named) -> Sequence[int | None]:
        """Reduce tensors together, each under its targets; return their rows. Never raises."""

    def observe_all(self, targets: Sequence[str], tensors: list[Tensor], scale: Tensor | None = None) -> None:
        """Reduce a list at once; the last list of a step counts."""

    def observe_at(self, step_id: StepId, target: str, found: list[Tensor] | float) -> None:
        """Reduce tensors of a step, this one or an earlier one, into one row; or keep a number as one. Any thread."""

    def add_row(self, target: str, row: int, order: int | None = None) -> None:
        """Keep an existing row under another name; `order`: its place, if it was taken before."""

    @property
    def counts_bins(self) -> bool:
        """Whether this step records distributions of this quantity."""

    def add_later(self, rows: LateRows, most: int, bins: LateBins | None = None) -> None:
        """Keep at most `most` rows that are computed when the step is recorded; the last row of a target counts."""

    def watch_next(self) -> None:
        """Record the next step as well, whatever the schedule says."""

    def describe(self, collective: Collective) -> None:
        """Describe a collective when it is first seen. Any thread."""

    def failed(self, error: Exception) -> None:
        """Switch this quantity off: its tensors cannot be read."""

    def took(self, seconds: float) -> None:
        """Add the training thread's time spent on this quantity."""


class ChannelSizes(Protocol):
    """The sizes of one tensor's channels, on their way to the host; both calls may wait."""

    def rows(self) -> tuple[Sequence[str], Table]:
        """Return the Summary of the largest magnitude of each channel."""

    def detail(self) -> Mapping[str, bytes]:
        """Return the largest channels, as stored."""


class Sketch(Protocol):
    """A random projection of many tensors to few numbers, alike on all ranks."""

    def add(self, name: str, tensor: Tensor) -> bool:
        """Add a tensor; False if its values cannot be read."""

    def later(self) -> Later | None:
        """Start copying the numbers to the host; None if nothing was added."""


Describe = Callable[[Tensor], TensorSpec]
"""Returns the shape and dtype of a tensor."""


class TimeMark(Protocol):
    """A point in the work of the training device, or of the host if it trains there."""

    def seconds_until(self, later: TimeMark) -> float:
        """Return the seconds between two marks; waits for both, on any thread."""
