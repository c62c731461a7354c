"""What msprobe shows of a watched MindSpore model and no other part of vario uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore import Tensor, ops
from mindspore.graph.api import _no_grad

from vario.backends.mindspore.spectra import SpectralNorms, as_number, matrices
from vario.backends.protocols.observing import Observer
from vario.core.records import Share, TensorSpec

if TYPE_CHECKING:
    from vario.backends.mindspore.model import PyNativeModel


class MindSporeWishes:
    """A watched MindSpore model as msprobe sees it."""

    clips_in_step = False

    def __init__(self, model: PyNativeModel) -> None:
        self._model = model
        self._spectral_norms = SpectralNorms()

    @property
    def shares(self) -> Mapping[str, Share]:
        """The part of each parameter on this rank: all of it."""
        parameters = self._model.targets.all_parameters.items()
        return {name: Share(tuple(parameter.shape)) for name, parameter in parameters}

    def tensor_spec(self, tensor: Any) -> TensorSpec:
        """Return the shape and dtype of a tensor."""
        return tuple(tensor.shape), str(tensor.dtype)

    def loss_scale(self) -> Any:
        """Return what the loss of this step is multiplied by."""
        return self._model.loss_scale()

    def gradients(self, optimizer: Any) -> tuple[Sequence[str], list[Any], Any]:
        """Return names, gradients and their scale: as an optimizer gets them, or without one as backward left them."""
        if optimizer is None:
            return *self._model.gradients_so_far(), self._model.loss_scale()
        return *self._model.applied_gradients(optimizer), self._model.optimizer_scale(optimizer)

    def on_gradients_through_modules(self, observer: Observer) -> None:
        """Pass the gradients of cells to this observer: of inputs MindSpore tells what comes through the cell."""
        self._model.cell_tensors.separates_gradients = True
        self._model.on_module_gradients(observer)

    def on_modules_called(self, names: Sequence[str], call: Callable[[str, tuple[Any, ...]], None]) -> None:
        """Call `call` with (name, positional inputs) when one of these cells is called in a training pass."""
        self._model.inside.on_modules_called(names, call)

    def first_head_rows(self, name: str, query: Any, key: Any, order: str) -> dict[str, Any]:
        """Return entropy and largest probability of each attention row, for the first head of the first sample."""
        return self._model.inside.attention_rows(name, query, key, order, first_only=True)

    def matrices(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Return the two-dimensional weights of these cells, without embeddings."""
        return matrices({name: self._model.targets.all_cells[name] for name in names})

    def matrix_norms(self, name: str, matrix: Any) -> tuple[Any, Any]:
        """Return the largest singular value, iterated from step to step, and the Frobenius norm over it."""
        largest, frobenius = self._spectral_norms.measure(name, matrix)
        return as_number(largest), as_number(frobenius / largest if largest else float("nan"))

    def mean_cosine(self, matrix: Any) -> Any:
        """Return the mean cosine over all pairs of experts, which lie along the smaller dimension."""
        with _no_grad():
            experts = matrix.astype(mindspore.float32)
            experts = experts if experts.shape[0] < experts.shape[1] else experts.T
            count = experts.shape[0]
            if count < 2:
                return as_number(0.0)
            lengths = ops.sqrt(ops.square(experts).sum(1, keepdims=True))
            total = (experts / ops.maximum(lengths, as_number(1e-12))).sum(0)
            return (ops.square(total).sum() - count) / (count * (count - 1))

    def choice_entropy(self, output: Collection[Any]) -> Any:
        """Return the entropy of each token's choice, from the logits among a router's outputs."""
        logits = next((item for item in output if isinstance(item, Tensor)), None)
        if logits is None:
            return None
        with _no_grad():
            chances = ops.log_softmax(logits.astype(mindspore.float32), -1)
            # Of an expert that is masked out the product is 0 times -inf.
            return -(ops.exp(chances) * ops.maximum(chances, as_number(-1e30))).sum(-1)
