"""What msprobe shows of a model and no other part of vario uses: offered to `vario.compat.msprobe` only.

A framework offers `MsprobeSide` for models that are not watched yet, and a watched model the others, as capabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from vario.backends.protocols.events import Undo
from vario.backends.protocols.observing import NamedTensors, Observer, Tensor
from vario.core.records import Share, TensorSpec
from vario.statistics import Values


@dataclass(frozen=True)
class NamedPart:
    """A module or parameter, and what it is called."""

    stage: int
    """Which of the given models it belongs to."""
    name: str
    """vario's name."""
    full: str
    """Its name in the model as it was given."""
    bare: str
    """Its name in the user's own model, without what wrappers add; empty for the outermost module."""
    part: Any


@dataclass(frozen=True)
class ProcessPlace:
    """The position of this process: among all, and in a group."""

    rank: int
    world_size: int
    rank_in_group: int
    ranks_of_group: tuple[int, ...]


class MsprobeSide(Protocol):
    """The models of one framework and their calls, as msprobe sees them."""

    def place(self, process_group: Any) -> ProcessPlace:
        """Return the position of this process; without a group of this framework, in the group of all."""

    def check(self, chunks: Sequence[Any], optimizer: Any) -> None:
        """Raise ModelError for anything that is not a model or an optimizer that can be watched."""

    def modules(self, chunks: Sequence[Any]) -> Iterator[NamedPart]:
        """Yield the modules of these models."""

    def parameters(self, chunks: Sequence[Any]) -> Iterator[NamedPart]:
        """Yield their parameters."""

    def rank_and_first(self, group: Any) -> tuple[int, int]:
        """Return the rank of this process in a group, and the global rank of the group's first process."""

    def after_each_call(self, modules: Mapping[str, Any], note: Callable[..., None], in_any_mode: bool = False) -> Undo:
        """Run `note(name, args, kwargs, output)` after calls of these modules in training passes.

        Modules in evaluation mode are skipped, unless `in_any_mode`: frozen ones may stay in it while others train.
        """

    def after_each_backward(self, modules: Mapping[str, Any], note: Callable[..., None]) -> Undo:
        """Run `note(name, of inputs, of outputs)` with tuples that have the shapes and dtypes of these gradients.

        What has no gradient is None. It may be called before backward if the gradients are known then.
        """

    def is_tensor(self, value: Any) -> bool:
        """Whether a value is a tensor."""

    def number(self, value: float) -> Tensor:
        """Return a tensor without dimensions."""

    def is_between_calls(self, filename: str) -> bool:
        """Whether code of this file stands between a module and its caller: a part of the framework."""


class MsprobeFramework(Protocol):
    """A framework whose models TrainerMon watches."""

    imported_as: str

    @staticmethod
    def msprobe_side() -> MsprobeSide:
        """Return its models as msprobe sees them; the framework has been imported."""


class MsprobeWishes(Protocol):
    """Tensors of a watched model, as msprobe records them."""

    @property
    def shares(self) -> Mapping[str, Share]:
        """The part of each parameter on this rank."""

    @property
    def clips_in_step(self) -> bool:
        """Whether a runtime's own `step` clips gradients, out of the loop's sight."""

    def tensor_spec(self, tensor: Tensor) -> TensorSpec:
        """Return the shape and dtype of a tensor."""

    def loss_scale(self) -> Tensor | None:
        """Return what the loss of this step is multiplied by."""

    def gradients(self, optimizer: Any) -> tuple[Sequence[str], list[Tensor], Tensor | None]:
        """Return names, gradients and their scale: as an optimizer gets them, or without one as backward left them."""

    def on_gradients_through_modules(self, observer: Observer) -> None:
        """Pass the gradients of outputs to this observer, and of inputs only what comes through that module."""


class MsprobeFeatures(Protocol):
    """Numbers of single layers (`recording_l2_features`)."""

    def on_modules_called(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, positional inputs) when one of these modules is called in a training pass."""

    def first_head_rows(self, name: str, query: Tensor, key: Tensor, order: str) -> dict[str, Tensor]:
        """Return entropy and largest probability of each attention row, for the first head of the first sample."""

    def matrices(self, names: Sequence[str]) -> Mapping[str, Tensor]:
        """Return the two-dimensional weights of these modules, without embeddings and shards."""

    def matrix_norms(self, name: str, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest singular value of a matrix, followed from step to step, and its Frobenius norm over it."""

    def mean_cosine(self, matrix: Tensor) -> Tensor:
        """Return the mean cosine over all pairs of a router's experts.

        They lie along the smaller dimension; in a square matrix they are its columns.
        """

    def choice_entropy(self, output: Collection[Any]) -> Tensor | None:
        """Return the entropy of each token's choice, from the logits among a router's outputs; None without any."""


class MsprobeMomentum(Protocol):
    """How gradients and updates relate to the optimizer's momentum."""

    def sign_agreement(self, optimizer: Any) -> NamedTensors:
        """Return names and the share of elements whose gradient has the sign of the optimizer's momentum."""

    def update_histograms(
        self, optimizer: Any, bins: int, low: float, high: float
    ) -> tuple[list[str], Callable[[], Values]]:
        """Return names, and a function that waits for histograms of Adam's update, then of its ratio: one row each."""
