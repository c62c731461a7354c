"""What of a model is watched, and where its tensors are: what every backend answers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from vario.core.records import Share, Structure
from vario.statistics import Values

Tensor = Any
"""A tensor of whatever framework the backend is for."""


class UnzeroedGradients(Protocol):
    """Tells gradients that an update has used already from those that came since."""

    def update_ended(self, optimizer: Any) -> None:
        """An update has used its gradients; None is one by hand."""

    def backward_began(self) -> None:
        """A backward sets out, and has reached no parameter yet."""

    def update_began(self, optimizer: Any) -> float | Tensor:
        """How much of its gradients was there all the time since its update before."""


class Targets(Protocol):
    """What of the model is watched, and where its tensors are."""

    shares: dict[str, Share]
    """Which part of each parameter this rank holds."""

    def structure(self) -> Structure:
        """Modules and parameters, as `structure.json` holds them."""

    def are_updated_by(self, optimizer: Any) -> bool:
        """Whether an optimizer holds any of the models' parameters."""

    def hold(self, models: Any) -> bool:
        """Whether these models, or parts of them, are among them."""

    def leave_to_others(self, rank: int, recording: Collection[int]) -> None:
        """Say which ranks record (empty: all): of what is the same on several, the first of them records it."""

    def settings(self, optimizer: Any) -> dict[str, float]:
        """What is trained, and how, as numbers that stay the same in ordinary training."""

    def left_over_gradients(self) -> UnzeroedGradients | None:
        """Follows gradients that nobody zeroes; None where there is nothing to see."""

    def modules_in_eval(self) -> list[str]:
        """Names of the modules that are in evaluation mode."""

    def unknown_parameters(self) -> list[str]:
        """Names of parameters that came into the model after it was watched."""

    @property
    def replicated(self) -> list[str]:
        """The chosen parameters that other ranks are known to hold as well."""

    def gradient_checksums(self, optimizer: Any) -> tuple[list[str], list[Tensor]]:
        """Names (`weight:gradient`) and checksums of the gradients that other ranks have as well."""

    def weight_checksums(self, optimizer: Any) -> tuple[list[str], list[Tensor]]:
        """Names (`weight:weight`) and checksums of the weights that other ranks hold as well."""

    def weights(self, optimizer: Any) -> tuple[list[str], list[Tensor]]:
        """Names and values of the chosen parameters an optimizer holds."""

    def frozen_weights(self) -> tuple[list[str], list[Tensor]]:
        """Names and values of the chosen parameters that need no gradient."""

    def moments(self, optimizer: Any) -> tuple[list[str], list[Tensor]]:
        """Names and values of every tensor of an optimizer's state, for the chosen parameters."""

    def sign_agreement(self, optimizer: Any) -> tuple[list[str], list[Tensor]]:
        """Names and the share of elements whose gradient points where the optimizer's momentum does."""

    def update_histograms(
        self, optimizer: Any, bins: int, low: float, high: float
    ) -> tuple[list[str], Callable[[], Values]]:
        """Names, and a function that waits for histograms of Adam's update, then of its ratio: a row each."""

    def device_scalars(self) -> dict[str, float]:
        """Memory in use, by name and in bytes."""
