"""What the Monitor asks of a tensor framework, and what a framework tells the Monitor.

A backend turns its framework's hooks into these events, in this order, for every step::

    for micro_step in ...:                 forward_began        (the outermost module, gradients on)
        output = model(batch)                  module_called        (each module: its inputs and outputs)
        loss.backward()                        tensor_gradient      (the gradients of those)
                                               local_gradient       (each parameter's share of this pass)
                                           backward_ended       (gradients complete, not yet clipped)
    clip(...)
    optimizer.step()                       update_began         (gradients as the optimizer gets them)
                                           update_ended         (new weights, new optimizer state)
    monitor.log(loss=...)                  (still the same step; it ends when the next forward begins)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from vario.backends.collectives import CollectiveFollower
from vario.backends.losses import BackwardLoss
from vario.backends.step_rows import StepRows
from vario.backends.watched_targets import Targets
from vario.core.clock import Clock
from vario.core.records import Collective, HostCopy, Mesh, StepId, Table, TensorSpec

Undo = Callable[[], None]
"""Takes back what an attach did."""

Tensor = Any
"""A tensor of whatever framework is watched; the core never looks inside."""


Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""What a module is called with: positional and keyword arguments."""

Later = Callable[[], npt.NDArray[Any]]
"""Numbers on their way from a device: the call waits for them, on any thread."""

LateRows = Callable[[], tuple[Sequence[str], Table]]
"""Targets and Summaries that are made when the step's record is; the call may wait for a device."""

RowHashes = npt.NDArray[np.uint64]
"""A number for the content of each row of a batch."""


TRAINING_LOOP = "training loop"
"""The part that is switched off when following the loop itself fails."""


class Summaries(Protocol):
    """Turns tensors into rows of Summaries; nothing waits for the device until the rows are fetched."""

    def observe(self, tensor: Tensor, scale: Tensor | None = None) -> int | None:
        """Reduce one tensor, divided by `scale`; its row number within the step, or None when it has no numbers."""

    def observe_many(self, tensors: list[Tensor], scale: Tensor | None = None, again: str = "") -> list[int | None]:
        """Reduce a list of tensors at once. A later list under the same name `again` takes the earlier one's rows."""

    def at_once(self, tensors: list[Tensor]) -> list[float] | None:
        """The Summary of all these tensors where their numbers are at hand on the host; no row is kept. Any thread."""

    def collect(self, keep: bool = False) -> Callable[[], Table]:
        """End the step: a function that waits for the rows and returns them, to be called from any thread.

        With `keep` the step goes on and the rows are those it has by now.
        """


class Observer(Protocol):
    """One quantity's way into the step in progress: keeps to its schedule and never raises into training."""

    watching: bool
    """Whether this step is watched."""

    def observe(self, target: str, tensor: Tensor) -> int | None:
        """Reduce a tensor and keep its row."""

    def observe_latest(self, target: str, tensor: Tensor) -> None:
        """Reduce a tensor; the last of a step wins."""

    def failed(self, error: Exception) -> None:
        """Say that this quantity's tensors cannot be looked at: it is switched off."""

    def observe_again(self, target: str, row: int) -> None:
        """Keep a row reduced before, under another name."""

    def observe_all(self, targets: list[str], tensors: list[Tensor], scale: Tensor | None = None) -> None:
        """Reduce a list at once; the last list of a step wins."""


class LateObserver(Protocol):
    """A quantity's way into the step in progress for rows that are made all at once, and only when it is recorded."""

    watching: bool

    def observe_later(self, rows: LateRows, most: int) -> None:
        """Keep at most so many rows; targets of later calls replace those of earlier ones."""

    def failed(self, error: Exception) -> None:
        """Say that this quantity cannot be looked at: it is switched off."""


class StepIdObserver(Protocol):
    """A quantity's way into the step in progress, or into one before it, from any thread."""

    watching: bool

    @property
    def step_id(self) -> StepId:
        """The step and micro-step in progress."""

    def observe_at(self, step_id: StepId, target: str, tensors: list[Tensor]) -> None:
        """Reduce tensors that belong to a step into one row."""

    def keep(self, step_id: StepId, target: str, number: float) -> None:
        """Keep a plain number as a row of one element."""

    def describe(self, collective: Collective) -> None:
        """Say what a collective is, when it is seen for the first time."""


class TimeMark(Protocol):
    """A moment in the work of the device that trains, or of the host where it trains."""

    def seconds_until(self, later: TimeMark) -> float:
        """The time that passed between two such moments; waits for both, on any thread."""


class Events(Protocol):
    """What a watched model calls back for."""

    @property
    def frames(self) -> StepRows:
        """The rows of the step in progress."""

    def update_completed(self) -> None:
        """All updates of this step have happened; what is logged from now on may come late."""

    def step_ended(self) -> None:
        """The training loop has turned to the next step."""

    def log(self, **values: Any) -> None:
        """A plain number of this step, as a Python number or a tensor."""

    def guarded(self, part: str, call: Callable[..., None]) -> Callable[..., None]:
        """The same call, which switches the part off instead of raising."""
        ...

    def switch_off(self, part: str, error: Exception) -> None:
        """A part failed: go on without it."""


class Inside(Protocol):
    """What happens inside the modules of a model in passes that train."""

    def on_attention(self, observer: Observer) -> None:
        """Hand the numbers of all attention inside the chosen modules to this observer: `<module>:entropy`, ..."""

    def on_units(self, observer: Observer) -> Callable[[], tuple[list[str], list[Tensor]]]:
        """Follow which units speak while this observer watches.

        The result gives modules and the share of their units that have been silent since it was last called.
        """

    def on_modules_returned(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call with (name, items) when one of these modules has returned one item or several."""

    def routers(self) -> list[str]:
        """The chosen modules that are routers of experts."""

    def expert_load(self, name: str, returned: Sequence[Any]) -> Tensor | None:
        """Per expert, tokens sent to it over the mean of all, from what a router returned; None: it does not say."""


class Watched(Protocol):
    """A model under watch: probes subscribe to its events."""

    clock: Clock
    rank: int
    world_size: int
    versions: dict[str, str]
    returns_loss: bool
    """Whether what a trainer calls in place of the model returns its loss."""
    losses_add_up: bool
    """Whether a trainer is known that makes the losses of a step's passes shares of one loss."""

    @property
    def mesh(self) -> Mesh:
        """The dimensions ranks are arranged in: their sizes, and where this one is."""

    @property
    def targets(self) -> Targets:
        """What of it is watched."""

    @property
    def inside(self) -> Inside:
        """What happens inside its modules."""

    @property
    def clips_in_step(self) -> bool:
        """Whether a runtime's own `step` clips gradients, where no loop comes between."""

    def summaries(self, eps: float, columns: frozenset[str]) -> Summaries:
        """What reduces this model's tensors."""

    def why_skipped(self, tensor: Tensor) -> str:
        """Why a tensor has no Summary, in words."""

    def describe(self, tensor: Tensor) -> TensorSpec:
        """Shape and dtype of a tensor."""

    def attach(self, events: Events) -> None:
        """Start following the training loop."""

    def finish(self) -> None:
        """The training is over: tell of an update that nothing has shown yet."""

    def detach(self) -> None:
        """Leave the model and the optimizer exactly as they were found."""

    def forget_what_failed(self) -> bool:
        """Drop the rows of a backward or an update that raised; answers whether there was one."""

    def is_busy_elsewhere(self) -> bool:
        """Whether another thread trains the model at this moment."""

    def losses_came(self, losses: Sequence[BackwardLoss]) -> None:
        """Tell of what the loop went back from before it was followed."""

    def update_by_hand(self) -> None:
        """The loop has updated the weights without a torch optimizer."""

    def pass_began(self) -> None:
        """A trainer that does not call the outermost module begins a pass that trains."""

    def pass_ended(self) -> None:
        """That pass, its backward and maybe an update are done."""

    def on_module_values(self, observer: Observer) -> None:
        """Hand module inputs and outputs to this observer."""

    def on_module_gradients(self, observer: Observer, through_modules: bool = False) -> None:
        """Hand the gradients of module inputs and outputs to this observer.

        An input's gradient is that of the tensor, from all that use it; `through_modules` only what this module adds.
        """

    def on_modules_called(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call with (name, positional inputs) when one of these modules is called in a pass that trains."""

    def on_pass_began(self, call: Callable[[str, Inputs], None]) -> None:
        """Call with the name of an outermost module and its inputs, as far as they are known, in a pass that trains."""

    def on_pass_ended(self, call: Callable[[Any], None]) -> None:
        """Call with what the outermost module returned in a pass that trains."""

    def on_reported(self, call: Callable[[Mapping[str, Any]], None]) -> None:
        """Call with what a trainer of another package reports of this model."""

    def on_batch(self, call: Callable[[Any], None]) -> None:
        """Call with the batches that the loop shows by itself."""

    def batch_came(self, batch: Any) -> None:
        """The loop shows a batch: any nest of tensors."""

    def on_local_gradients(self, call: Callable[[str, Tensor], None]) -> None:
        """Call with (name, gradient) for what one backward pass adds to each parameter's gradient."""

    def on_accumulated_gradients(self, call: Callable[[str, Tensor], None]) -> None:
        """Call with (name, gradient) when this rank's backward has added to a gradient, before ranks share it."""

    def on_backward_loss(self, call: Callable[[BackwardLoss], None]) -> None:
        """Call with the number that backward was called on, when it reaches the first parameter."""

    def part_updated_by(self, optimizers: Collection[Any]) -> str:
        """The part of the model that these update together; empty where no other updates another part."""

    def on_backward_began(self, call: Callable[[], None]) -> None:
        """Call when a backward sets out from the model's output, before it reaches any parameter."""

    def on_gradients_computed(self, call: Callable[[], None]) -> None:
        """Call when this rank has computed the last gradient of a backward, before it waits for others.

        Which one is the last is known from earlier backwards, so not in the first; a later call takes an earlier back.
        """

    def on_backward_ended(self, call: Callable[[], None]) -> None:
        """Call when gradients are complete and not yet clipped."""

    def on_collectives(self, follower: CollectiveFollower) -> None:
        """Tell of every collective operation this process takes part in, whoever calls it."""

    def on_backward_failed(self, call: Callable[[], None]) -> None:
        """Call when a backward is known to have raised: its forward passes are of no step."""

    def on_update_called(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer before it does anything, also before a closure that it runs."""

    def on_update_began(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it gets its gradients."""

    def on_update_returned(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it is done, before anybody looks at what it did."""

    def on_update_ended(self, call: Callable[[Any], None]) -> None:
        """Call with the optimizer when it has updated the weights."""

    def on_updates(self, observer: LateObserver) -> None:
        """Hand what updates do to each parameter, and what shape the optimizer is in, to this observer."""

    def on_stray_changes(self, observer: LateObserver) -> None:
        """Hand what changed parameters between updates to this observer."""

    def learning_rates(self, optimizer: Any) -> Later:
        """The learning rate of each of an optimizer's groups as it is now; NaN where there is none."""

    def loss_in(self, output: Any) -> Later | None:
        """The loss that a model returned, or has in what it returned, if it has."""

    def row_hashes(self, inputs: Any) -> Callable[[], RowHashes] | None:
        """Begin to hash the rows of a batch, a nest of tensors or the inputs of a model; None where it has none."""

    def time_mark(self) -> TimeMark:
        """This moment."""

    def gradients(self, optimizer: Any = None, replicas: bool = False) -> tuple[list[str], list[Tensor]]:
        """Names and gradients of the chosen parameters, of one optimizer's or of all not updated in this step."""

    def kept_of(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """What this rank keeps of these parameters: `name:weight`, `name:gradient`, and its optimizer's state."""

    def host_copy(self, tensor: Tensor, most_bytes: int, sample_bytes: int) -> HostCopy | None:
        """A copy on the host, cut to a sample where it takes more bytes than that; None: it shows no numbers."""

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Names of all modules that match, chosen as targets or not; a pattern that matches none is refused."""

    def attention_rows(
        self, name: str, query: Tensor, key: Tensor, order: str, first_only: bool = False
    ) -> dict[str, Tensor]:
        """Entropy, largest probability and largest logit of each row of a module's attention."""

    def matrices(self, names: Sequence[str] | None = None) -> dict[str, Tensor]:
        """The two-dimensional weights of these modules or of the chosen targets; embeddings and shards are left out."""

    def spectral_norm(self, name: str, matrix: Tensor) -> Tensor:
        """The largest singular value of a matrix, followed from step to step under a name."""

    def stable_rank(self, matrix: Tensor, spectral_norm: Tensor) -> Tensor:
        """The sum of a matrix's squared singular values over the largest one squared."""

    def loss_scale(self) -> Tensor | None:
        """What the loss of this step is multiplied by."""

    def optimizer_scale(self, optimizer: Any) -> Tensor | None:
        """What the gradients an optimizer gets are still multiplied by."""
