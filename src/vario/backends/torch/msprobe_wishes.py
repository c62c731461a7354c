"""What msprobe shows of a watched torch model and no other part of vario uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vario.backends.protocols.observing import Observer
from vario.backends.torch.modules.spectra import SpectralNorms
from vario.backends.torch.optimizer import update_direction
from vario.backends.torch.reduce.tensors import form
from vario.backends.torch.targets import NamedTensors
from vario.core.records import Share, TensorSpec
from vario.statistics import Values

if TYPE_CHECKING:
    from vario.backends.torch.model import TorchModel


class TorchWishes:
    """A watched torch model as msprobe sees it."""

    def __init__(self, model: TorchModel) -> None:
        self._model = model
        self._targets = model.targets
        self._spectral_norms = SpectralNorms()

    @property
    def shares(self) -> Mapping[str, Share]:
        """The part of each parameter on this rank."""
        return self._targets.shares

    @property
    def clips_in_step(self) -> bool:
        """Whether a runtime's own `step` clips gradients, out of the loop's sight."""
        return self._targets.engine.clips_in_step

    def tensor_spec(self, tensor: torch.Tensor) -> TensorSpec:
        """Return the shape and dtype of a tensor."""
        return form(tensor)

    def loss_scale(self) -> torch.Tensor | None:
        """Return what the loss of this step is multiplied by."""
        return self._model.loss_scale()

    def gradients(self, optimizer: Any) -> tuple[Sequence[str], list[torch.Tensor], torch.Tensor | None]:
        """Return names, gradients and their scale: as an optimizer gets them, or without one as backward left them."""
        if optimizer is not None:
            return *self._targets.applied_gradients(optimizer), self._targets.optimizer_scale(optimizer)
        complete = self._model.complete_gradients()
        return *complete.named(), complete.scale

    def on_gradients_through_modules(self, observer: Observer) -> None:
        """Pass the gradients of outputs to this observer, and of inputs only what comes through that module."""
        self._model.separate_gradients()
        self._model.on_module_gradients(observer)

    def on_modules_called(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, positional inputs) when one of these modules is called in a training pass."""
        self._model.inside.on_modules_called(names, call)

    def first_head_rows(self, name: str, query: torch.Tensor, key: torch.Tensor, order: str) -> dict[str, torch.Tensor]:
        """Return entropy and largest probability of each attention row, for the first head of the first sample."""
        return self._model.inside.attention_rows(name, query, key, order, first_only=True)

    def matrices(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Return the two-dimensional weights of these modules, without embeddings and shards."""
        return self._spectral_norms.matrices({name: self._targets.all_modules[name] for name in names})

    def matrix_norms(self, name: str, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the largest singular value, iterated from step to step, and the Frobenius norm over it."""
        matrix = matrix.detach()
        largest = self._spectral_norms.measure(name, matrix)
        sizes = matrix.abs() if matrix.is_complex() else matrix
        return largest, sizes.float().norm() / largest

    def mean_cosine(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the mean cosine over all pairs of experts, which lie along the smaller dimension."""
        matrix = matrix.detach().float()
        experts = matrix if matrix.shape[0] < matrix.shape[1] else matrix.T
        count = experts.shape[0]
        if count < 2:
            return experts.new_zeros(())
        total = (experts / experts.norm(dim=1, keepdim=True).clamp_min(1e-12)).sum(0)
        # The sum over all ordered pairs is the square of the summed unit vectors, less each with itself.
        cosine: torch.Tensor = (total.square().sum() - count) / (count * (count - 1))
        return cosine

    def choice_entropy(self, output: Collection[Any]) -> torch.Tensor | None:
        """Return the entropy of each token's choice, from the logits among a router's outputs."""
        logits = next((item for item in output if isinstance(item, torch.Tensor)), None)
        if logits is None:
            return None
        chances = logits.detach().float().log_softmax(-1)
        return -(chances.exp() * chances).nan_to_num().sum(-1)

    def sign_agreement(self, optimizer: Any) -> NamedTensors:
        """Return names and the share of elements whose gradient has the sign of the optimizer's momentum."""
        if optimizer is None:
            return [], []
        return update_direction.sign_agreement(optimizer, self._targets.pieces_with_state(optimizer))

    def update_histograms(
        self, optimizer: Any, bins: int, low: float, high: float
    ) -> tuple[list[str], Callable[[], Values]]:
        """Return names, and a function that waits for histograms of Adam's update, then of its ratio: one row each."""
        if optimizer is None:
            return [], lambda: np.empty((0, bins))
        pieces = self._targets.pieces_with_state(optimizer)
        return update_direction.update_histograms(optimizer, pieces, bins, low, high)
