"""What a backend may offer beyond the required protocol: one small protocol per capability.

A probe lists the ones it requires in its `needs`. If a backend lacks one, the run lists the quantity as not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Protocol

from vario.backends.protocols.collectives import CollectiveFollower
from vario.backends.protocols.losses import BackwardLoss, Compared
from vario.backends.protocols.observing import (
    ChannelSizes,
    Later,
    NamedTensors,
    Observer,
    RowHashes,
    Sketch,
    Tensor,
    TimeMark,
)
from vario.core.elements.bins import BinTable
from vario.core.records import HostCopy, Mesh


class LossScale(Protocol):
    """What gradients are multiplied by while they are computed."""

    def loss_scale(self) -> Tensor | None:
        """Return what the loss of this step is multiplied by."""


class ModuleTensors(LossScale, Protocol):
    """Inputs and outputs of modules, and their gradients."""

    def on_module_values(self, observer: Observer) -> None:
        """Pass module inputs and outputs to this observer."""

    def on_module_gradients(self, observer: Observer) -> None:
        """Pass the gradients of module inputs and outputs to this observer."""


class LocalGradients(LossScale, Protocol):
    """Gradients of single parameters during backward, before ranks reduce them."""

    def on_local_gradients(self, call: Callable[[str, Tensor], None]) -> None:
        """Call `call` with (name, gradient) for what one backward pass adds to each parameter's gradient."""

    def on_accumulated_gradients(self, call: Callable[[str, Tensor], None]) -> None:
        """Call `call` with (name, gradient) when this rank's backward added to a gradient, before ranks reduce it."""


class AppliedGradients(Protocol):
    """Gradients as an optimizer gets them, after clipping."""

    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Return names and gradients of the chosen parameters that it is about to update."""

    def optimizer_scale(self, optimizer: Any) -> Tensor | None:
        """Return the scale these gradients still have."""


class OptimizerState(Protocol):
    """An optimizer's state and settings."""

    def moments(self, optimizer: Any) -> NamedTensors:
        """Return names (`weight:exp_avg`) and values of every tensor of its state, for the chosen parameters."""

    def learning_rates(self, optimizer: Any) -> Later:
        """Return the current learning rate of each of its groups; NaN if a group has none."""

    def initial_rate(self, optimizer: Any) -> float | None:
        """Return the rate that a scheduler of its first group starts from; None if it has none."""

    def is_scheduled(self, optimizer: Any) -> bool | None:
        """Whether a scheduler set these rates; None if they have not changed since the last call, or it is unknown."""


class TrainingSettings(Protocol):
    """Settings that decide what is trained."""

    def optimizer_settings(self, optimizer: Any) -> dict[str, float]:
        """Return an optimizer's options as numbers that stay constant in ordinary training; called at every update."""

    def settings(self) -> dict[str, float]:
        """Return what is trained as numbers that stay constant in ordinary training."""

    def changed_attributes(self) -> dict[str, tuple[float, float]]:
        """Return numbers of modules that have changed since the last call (`norm.eps`): the old and the new value."""

    def modules_in_eval(self) -> list[str]:
        """Return the names of the modules in eval mode."""

    def left_out(self, optimizers: Collection[Any]) -> list[str]:
        """Return the names of parameters that have a gradient and are in none of these optimizers."""

    def without_gradient(self, optimizer: Any) -> tuple[list[str], int]:
        """Return the names of parameters in an optimizer that require a gradient and have none, of how many."""

    def trained_parameters(self) -> list[str]:
        """Return the names of the parameters that require a gradient."""

    def unknown_parameters(self) -> list[str]:
        """Return the names of parameters added to the model after `vario.watch`."""


class UnzeroedGradients(Protocol):
    """Separates gradients that an update has already used from those computed since."""

    def update_ended(self, optimizer: Any) -> None:
        """Note that an update has used its gradients; None: the loop's own update."""

    def backward_began(self) -> None:
        """Note the start of a backward pass, before it reaches any parameter."""

    def update_began(self, optimizer: Any) -> float | Tensor:
        """Return how much of its gradients is left over from before its previous update."""


class KeptGradients(Protocol):
    """Gradients that stay until they are zeroed."""

    def unzeroed_gradients(self) -> UnzeroedGradients | None:
        """Return what follows gradients that are not zeroed; None if there is nothing to follow."""


class UpdateSamples(Protocol):
    """What updates do to each parameter, on a sample of its elements."""

    def on_updates(self, observer: Observer) -> None:
        """Pass what updates do to each parameter, and the optimizer's state of health, to this observer."""

    def on_unexpected_changes(self, observer: Observer) -> None:
        """Pass what changed parameters between updates to this observer."""


class Replicas(Protocol):
    """What several ranks have in common, and how ranks are arranged."""

    @property
    def mesh(self) -> Mesh:
        """The dimensions of the arrangement of ranks: their sizes, and the place of this rank."""

    @property
    def replicated(self) -> list[str]:
        """The chosen parameters that other ranks are known to have as well."""

    def leave_to_others(self, rank: int, recording: Collection[int]) -> None:
        """Set which ranks record (empty: all): of what several have, the first of them records it."""

    def gradient_checksums(self, optimizer: Any) -> NamedTensors:
        """Return names (`weight:gradient`) and checksums of the gradients that other ranks have as well."""

    def weight_checksums(self, optimizer: Any) -> NamedTensors:
        """Return names (`weight:weight`) and checksums of the weights that other ranks have as well."""


class Attention(Protocol):
    """Attention inside modules."""

    def on_attention(self, observer: Observer, by_head: bool = False) -> None:
        """Pass the numbers of all attention inside the chosen modules to this observer: `<module>:entropy`, ...

        With `by_head` also the normalised entropy and the largest logit of each head: `<module>:head_entropy.0`, ...
        """

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of all modules that match, targets or not; raises if a pattern matches none."""

    def on_modules_called(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, positional inputs) when one of these modules is called in a training pass."""

    def attention_rows(
        self, name: str, query: Tensor, key: Tensor, order: str, first_only: bool = False, by_head: bool = False
    ) -> dict[str, Tensor]:
        """Return entropy, largest probability and largest logit of each row of a module's attention."""


class Routers(Protocol):
    """Routers that send tokens to experts."""

    def routers(self) -> list[str]:
        """Return the chosen modules that are routers of experts."""

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of all modules that match, targets or not; raises if a pattern matches none."""

    def on_modules_returned(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, items) when one of these modules has returned one or several items."""

    def expert_rows(
        self, name: str, returned: Sequence[Any], read: Callable[..., Any] | None = None
    ) -> dict[str, Tensor] | None:
        """Return `load`, the tokens per expert over the mean, and `dropped` if a router's output says so.

        None if the output does not say which experts it chose. `read`: a function of the user's that reads the output.
        """

    def fetch_later(self, tensor: Tensor) -> Later:
        """Start copying a few numbers to the host; the result waits for them."""


class RouterLogits(Protocol):
    """Logits of routers."""

    def routers(self) -> list[str]:
        """Return the chosen modules that are routers of experts."""

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of all modules that match, targets or not; raises if a pattern matches none."""

    def on_modules_called(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, positional inputs) when one of these modules is called in a training pass."""

    def on_modules_returned(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, items) when one of these modules has returned one or several items."""

    def logit_source(self, name: str) -> tuple[str, bool] | None:
        """Return the module that shows a router's logits, and whether it returns them or is called with its input."""

    def logit_rows(
        self, name: str, values: Sequence[Any], read: Callable[..., Any] | None = None
    ) -> dict[str, Tensor] | None:
        """Return `entropy` and `logit` of a router from what its source returned or was called with.

        `read`: a function of the user's that reads what the router itself returned.
        """


class SilentUnits(Protocol):
    """Dead units of modules."""

    def on_units(self, observer: Observer) -> Callable[[], NamedTensors]:
        """Track which units are active while this observer records.

        The result returns modules and the share of their units that were inactive since its last call.
        """


class Sketches(Protocol):
    """Random projections."""

    def new_sketch(self, size: int, seed: int) -> Sketch:
        """Return an empty projection to `size` numbers, a power of two; those of one seed can be compared."""


class Spectra(Protocol):
    """Singular values of weight matrices."""

    def spectra(self) -> NamedTensors:
        """Return `<module>:spectral_norm` and `<module>:stable_rank` of the weight matrix of each chosen module."""


class Distributions(Protocol):
    """How the elements of tensors are distributed over the bins of `vario.core.elements.bins`."""

    device_seconds: float
    """Estimated device time for what was counted; the reader resets it to 0."""

    def count_rows(self, rows: Sequence[int | None], tensors: Sequence[Tensor], scale: Tensor | None) -> None:
        """Count the elements of tensors, divided by `scale`, as those of these rows of the step; None: of no row.

        A row that comes again in the step replaces itself.
        """

    def collect_rows(self) -> Callable[[], BinTable]:
        """End the step; return a function that waits for the counts and returns them, on any thread."""


class Channels(Protocol):
    """How large single channels of tensors are."""

    def chosen_modules(self) -> list[str]:
        """Return the chosen modules whose outputs have channels."""

    def on_modules_returned(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, items) when one of these modules has returned one or several items."""

    def channel_sizes(self, target: str, tensor: Tensor, kind: str) -> ChannelSizes | None:
        """Start to measure the `rows` or `columns` of a matrix, or the `features` of an activation; None: no such."""


class Collectives(Protocol):
    """Communication between ranks."""

    def on_collectives(self, follower: CollectiveFollower) -> None:
        """Report every collective of this process to the follower, whoever calls it."""


class Batches(Protocol):
    """The content of the batches that a model is called with."""

    def row_hashes(self, inputs: Any) -> Callable[[], RowHashes] | None:
        """Start hashing the rows of a batch (nested tensors, or inputs of a model); None if it has no rows."""


class InputSamples(Protocol):
    """Some elements of what a model is called with."""

    def input_samples(self, inputs: Any) -> Sequence[tuple[str, Later]]:
        """Start reading a sample of each tensor in a model's inputs, the same elements each time: name and numbers."""

    def hold_inputs(self, root: str, inputs: Any) -> None:
        """Remember what a model is called with, without keeping it alive."""

    def non_finite_inputs(self) -> Sequence[tuple[str, int]]:
        """Count elements that are NaN or +Inf in the inputs on the host that still exist, where there are any."""


class Losses(Protocol):
    """The loss, found without logging by the script."""

    returns_loss: bool
    """Whether what a trainer calls instead of the model returns its loss."""
    losses_add_up: bool
    """Whether a known trainer makes the losses of a step's passes shares of one loss."""

    def loss_in(self, output: Any) -> Later | None:
        """Return the loss in a model's output, if there is one."""

    def on_backward_loss(self, call: Callable[[BackwardLoss], None]) -> None:
        """Call `call` with the number that backward was called on, when it reaches the first parameter."""

    def part_updated_by(self, optimizers: Collection[Any]) -> str:
        """Return the part of the model that these update together; empty if no other optimizer updates another part."""


class LossTargets(Protocol):
    """Some elements of what losses compare with."""

    def sample_targets(self, may_look: Callable[[], bool], call: Callable[[Compared], None]) -> None:
        """Call `call` with what a loss compares with, for backward passes at whose start `may_look()` is true."""


class DeviceClock(Protocol):
    """Time as measured by the training device."""

    def time_mark(self) -> TimeMark:
        """Return a mark of the current time."""

    def is_behind(self) -> bool:
        """Whether the device has not yet finished the work queued before the last call."""


class Clipping(Protocol):
    """Clipping of gradients by their norm."""

    def on_clipped(self, call: Callable[[Callable[[], float], float], None], may_copy: Callable[[], bool]) -> None:
        """Call `call` with the norm before clipping, which may wait, and the limit.

        For a norm on a device only if `may_copy()`: reading it takes a copy.
        """


class DeviceMemory(Protocol):
    """Memory of the training devices."""

    def device_scalars(self) -> dict[str, float]:
        """Return the memory in use in bytes, by name."""


class Snapshots(Protocol):
    """Copies of what is kept for parameters."""

    def kept_of(self, names: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield what this rank keeps for these parameters: `name:weight`, `name:gradient`, and optimizer state."""

    def host_copy(self, tensor: Tensor, most_bytes: int, sample_bytes: int) -> HostCopy | None:
        """Return a copy on the host, sampled down if it takes more bytes than that; None if it cannot be read."""


class FoundModels(Protocol):
    """A model that was found in an unchanged script (`vario run`), maybe in the middle of a step."""

    def are_updated_by(self, optimizer: Any) -> bool:
        """Whether an optimizer has any of its parameters."""

    def is_busy_elsewhere(self) -> bool:
        """Whether another thread is training it right now."""

    def losses_came(self, losses: Sequence[BackwardLoss]) -> None:
        """Report the losses of backward passes from before the model was watched."""
