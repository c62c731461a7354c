"""What msprobe records and vario does not under these names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from vario.backends.base import Tensor, Watched
from vario.compat.msprobe.heat_maps import BINS, HIGH, LOW, HeatMaps
from vario.core.records import Share
from vario.probes import Recorder


class ReducedGradients:
    """Gradients as the `step` that the loop calls finds them, without those another rank of the group writes.

    A torch optimizer finds them clipped by the loop; a runtime that clips by itself finds them as they were reduced.
    """

    quantity: ClassVar[str] = "gradient_applied"
    every: ClassVar[int] = 1

    def __init__(self, duplicates: Callable[[Mapping[str, Share]], Collection[str]]) -> None:
        self._duplicates_among = duplicates

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        self._watched = watched
        self._duplicates = self._duplicates_among(watched.targets.shares)
        self._observer = recorder.observer(self.quantity)
        if watched.clips_in_step:
            watched.on_backward_ended(recorder.guarded(self.quantity, self.look))
        else:
            watched.on_update_began(recorder.guarded(self.quantity, self.look))

    def look(self, optimizer: Any = None) -> None:
        """Take the gradients as they are now."""
        if not self._observer.watching:
            return
        scale = self._watched.loss_scale() if optimizer is None else self._watched.optimizer_scale(optimizer)
        names, tensors = self._watched.gradients(optimizer)
        kept = [(name, tensor) for name, tensor in zip(names, tensors, strict=True) if name not in self._duplicates]
        self._observer.observe_all([name for name, _ in kept], [tensor for _, tensor in kept], scale)


class TrainedWeightsBefore:
    """Parameters that are being trained, as the update finds them."""

    quantity: ClassVar[str] = "weight_before"
    every: ClassVar[int] = 1

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the calls of updates."""
        watched.on_update_called(_looks_at_trained_weights(self.quantity, self._parameters, watched, recorder))


class TrainedWeights:
    """The same as the update leaves them."""

    quantity: ClassVar[str] = "weight"
    every: ClassVar[int] = 1

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the end of updates."""
        watched.on_update_ended(_looks_at_trained_weights(self.quantity, self._parameters, watched, recorder))


def _looks_at_trained_weights(
    quantity: str, parameters: Mapping[str, Tensor], watched: Watched, recorder: Recorder
) -> Callable[[Any], None]:
    observer = recorder.observer(quantity)

    def look(optimizer: Any) -> None:
        if observer.watching:
            names, tensors = watched.targets.weights(optimizer)
            # Now, for a loop may freeze and thaw them from step to step; an optimizer's copies know nothing of it.
            trained = [at for at, name in enumerate(names) if parameters[name].requires_grad]
            observer.observe_all([names[at] for at in trained], [tensors[at] for at in trained])

    return recorder.guarded(quantity, look)


class GradientsThroughModules:
    """Gradients of module inputs, as far as they come back through that module, and of outputs."""

    quantity: ClassVar[str] = "activation_gradient"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the gradients of what modules take and return."""
        watched.on_module_gradients(recorder.observer(self.quantity, watched.loss_scale), through_modules=True)


class Direction:
    """The share of a gradient that points where the momentum does."""

    quantity: ClassVar[str] = "direction"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        observer = recorder.observer(self.quantity)

        def update_began(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*watched.targets.sign_agreement(optimizer))

        watched.on_update_began(recorder.guarded(self.quantity, update_began))


class Updates:
    """Histograms of Adam's update and ratio, for heat maps."""

    quantity: ClassVar[str] = "update"
    every: ClassVar[int] = 1

    def __init__(self, heat_maps: HeatMaps) -> None:
        self._heat_maps = heat_maps

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        observer = recorder.observer(self.quantity)

        def update_began(optimizer: Any) -> None:
            if observer.watching:
                names, fetch = watched.targets.update_histograms(optimizer, BINS, LOW, HIGH)
                if names:
                    self._heat_maps.add(watched.clock.step, names, fetch)

        watched.on_update_began(recorder.guarded(self.quantity, update_began))


class FirstHead:
    """Entropy and row maximum of attention, of the first head of the first sample: what msprobe shows."""

    quantity: ClassVar[str] = "attention_hook"
    every: ClassVar[int] = 1

    def __init__(self, modules: Sequence[str], order: str) -> None:
        self._modules = modules
        self._order = order

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the calls of these modules."""
        observer = recorder.observer(self.quantity)

        def called(name: str, args: tuple[Any, ...]) -> None:
            if observer.watching:
                if len(args) < 2:
                    raise ValueError(f"'{name}' was called with {len(args)} inputs, not with queries and keys")
                rows = watched.attention_rows(name, args[0], args[1], self._order, first_only=True)
                for column in ("entropy", "softmax_max"):
                    observer.observe(f"{name}:{column}", rows[column])

        watched.on_modules_called(self._modules, recorder.guarded(self.quantity, called))


class _OfMatrices(ABC):
    """Numbers of modules' weight matrices, as the forward passes of the step used them."""

    quantity: ClassVar[str]
    every: ClassVar[int] = 1

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        observer = recorder.observer(self.quantity)

        def update_began(optimizer: Any) -> None:
            if not observer.watching:
                return
            for name, matrix in watched.matrices(self._modules).items():
                for column, number in self.measure(watched, name, matrix.detach()).items():
                    observer.observe_latest(f"{name}:{column}", number)

        watched.on_update_began(recorder.guarded(self.quantity, update_began))

    @abstractmethod
    def measure(self, watched: Watched, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """The numbers of one matrix, by column."""


class KernelNorms(_OfMatrices):
    """The largest singular value of a layer's matrix, and the Frobenius norm over it."""

    quantity: ClassVar[str] = "linear_hook"

    def measure(self, watched: Watched, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """`kernel_norm` and `sr`."""
        largest = watched.spectral_norm(name, matrix)
        sizes = matrix.abs() if matrix.is_complex() else matrix
        return {"kernel_norm": largest, "sr": sizes.float().norm() / largest}


class RouterWeights(_OfMatrices):
    """How alike the vectors of a router's experts are: their mean cosine, over all pairs."""

    quantity: ClassVar[str] = "moe_router_weight_hook"

    def measure(self, watched: Watched, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """`router_weight_similarity`."""
        return {"router_weight_similarity": _mean_cosine(matrix.float())}


class RouterLogits:
    """How undecided a router is: the entropy of its choice, averaged over tokens."""

    quantity: ClassVar[str] = "moe_router_logit_hook"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Get ready; what the routers return is handed to `returned`."""
        observer = recorder.observer(self.quantity)

        def returned(name: str, args: Any, kwargs: Any, output: Any) -> None:
            if observer.watching:
                items = output if isinstance(output, (list, tuple)) else [output]
                logits = next((item for item in items if hasattr(item, "log_softmax")), None)
                if logits is None:
                    raise ValueError(f"'{name}' returned no tensor of logits")
                chances = logits.detach().float().log_softmax(-1)
                entropy = -(chances.exp() * chances).nan_to_num().sum(-1)
                observer.observe(f"{name}:per_token_expert_entropy", entropy)

        self.returned = recorder.guarded(self.quantity, returned)


def _mean_cosine(matrix: Any) -> Any:
    """Over all pairs of experts, which lie along the smaller dimension; in a square matrix they are its columns."""
    experts = matrix if matrix.shape[0] < matrix.shape[1] else matrix.T
    count = experts.shape[0]
    if count < 2:
        return experts.new_zeros(())
    total = (experts / experts.norm(dim=1, keepdim=True).clamp_min(1e-12)).sum(0)
    # The sum over all ordered pairs is the square of the summed unit vectors, less each with itself.
    return (total.square().sum() - count) / (count * (count - 1))
