"""Probes for what msprobe records and vario does not."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.msprobe_wishes import MsprobeFeatures, MsprobeMomentum, MsprobeWishes
from vario.backends.protocols.observing import Tensor
from vario.compat.msprobe.heat_maps import DETAIL, HIGH, LOW, HeatMaps
from vario.core.records import Share
from vario.probes import Needs, Probe, Recorder

log = logging.getLogger("vario")


_FIELDS = {
    "direction": "mg_direction",
    "update": "ur_distribution",
    "communication": "cc_distribution",
}
"""Fields of the config for what not every framework offers; hooks of features are called as their quantity."""


class IfOffered:
    """A probe that is left out, with a warning, if the framework of the model does not offer what it needs."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Attach the probe."""
        needs: Needs = getattr(self._probe, "needs", ())
        if all(backend.offer(capability) is not None for capability in needs):
            self._probe.attach(backend, recorder)
        else:
            field = _FIELDS.get(self._probe.quantity, self._probe.quantity)
            log.warning("%s: not offered for models of this framework, so nothing is recorded for it", field)


class Arrangement:
    """What msprobe is told of a training, and keeps of every tensor; no quantity of its own."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def __init__(self, micro_steps: int) -> None:
        """A step has this many."""
        self._micro_steps = micro_steps

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Count passes as told, and keep shapes and dtypes."""
        backend.clock.micro_steps_per_step = self._micro_steps
        recorder.frames.keep_specs(needed(backend, MsprobeWishes).tensor_spec)


class ReducedGradients:
    """Gradients as the `step` that the loop calls finds them, without those another rank of the group writes.

    A torch optimizer finds them clipped by the loop; a runtime that clips by itself finds them as they were reduced.
    """

    quantity: ClassVar[str] = "gradient_applied"
    every: ClassVar[int] = 1

    def __init__(self, duplicates: Callable[[Mapping[str, Share]], Collection[str]]) -> None:
        self._duplicates_among = duplicates

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        self._wishes = wishes = needed(backend, MsprobeWishes)
        self._duplicates = self._duplicates_among(wishes.shares)
        self._observer = recorder.observer(self.quantity)
        if wishes.clips_in_step:
            backend.on_backward_ended(recorder.guarded(self.quantity, lambda gradients: self.look()))
        else:
            backend.on_update_began(recorder.guarded(self.quantity, self.look))

    def look(self, optimizer: Any = None) -> None:
        """Read the current gradients."""
        if not self._observer.watching:
            return
        names, tensors, scale = self._wishes.gradients(optimizer)
        kept = [(name, tensor) for name, tensor in zip(names, tensors, strict=True) if name not in self._duplicates]
        self._observer.observe_all([name for name, _ in kept], [tensor for _, tensor in kept], scale)


class TrainedWeightsBefore:
    """Parameters that are being trained, as the update finds them."""

    quantity: ClassVar[str] = "weight_before"
    every: ClassVar[int] = 1

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the calls of updates."""
        backend.on_update_called(_looks_at_trained_weights(self.quantity, self._parameters, backend, recorder))


class TrainedWeights:
    """The same as the update leaves them."""

    quantity: ClassVar[str] = "weight"
    every: ClassVar[int] = 1

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the end of updates."""
        backend.on_update_ended(_looks_at_trained_weights(self.quantity, self._parameters, backend, recorder))


def _looks_at_trained_weights(
    quantity: str, parameters: Mapping[str, Tensor], backend: Backend, recorder: Recorder
) -> Callable[[Any], None]:
    observer = recorder.observer(quantity)

    def look(optimizer: Any) -> None:
        if observer.watching:
            names, tensors = backend.weights(optimizer)
            # Now, for a loop may freeze and thaw them from step to step; an optimizer's copies know nothing of it.
            trained = [at for at, name in enumerate(names) if parameters[name].requires_grad]
            observer.observe_all([names[at] for at in trained], [tensors[at] for at in trained])

    return recorder.guarded(quantity, look)


class GradientsThroughModules:
    """Gradients of module inputs, only the part that flows through that module, and of outputs."""

    quantity: ClassVar[str] = "activation_gradient"
    every: ClassVar[int] = 1

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the gradients of what modules take and return."""
        wishes = needed(backend, MsprobeWishes)
        wishes.on_gradients_through_modules(recorder.observer(self.quantity, wishes.loss_scale))


class Direction:
    """The share of a gradient that points where the momentum does."""

    quantity: ClassVar[str] = "direction"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (MsprobeMomentum,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        observer, wishes = recorder.observer(self.quantity), needed(backend, MsprobeMomentum)

        def update_began(optimizer: Any) -> None:
            if observer.watching:
                observer.observe_all(*wishes.sign_agreement(optimizer))

        backend.on_update_began(recorder.guarded(self.quantity, update_began))


class Updates:
    """Histograms of Adam's update and ratio, for heat maps."""

    quantity: ClassVar[str] = "update"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (MsprobeMomentum,)

    def __init__(self, heat_maps: HeatMaps) -> None:
        self._heat_maps = heat_maps

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        observer, wishes = recorder.observer(self.quantity), needed(backend, MsprobeMomentum)

        def update_began(optimizer: Any) -> None:
            if observer.watching:
                names, fetch = wishes.update_histograms(optimizer, DETAIL, LOW, HIGH)
                if names:
                    self._heat_maps.add(backend.clock.step, names, fetch)

        backend.on_update_began(recorder.guarded(self.quantity, update_began))


class FirstHead:
    """Entropy and row maximum of attention, of the first head of the first sample: what msprobe shows."""

    quantity: ClassVar[str] = "attention_hook"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (MsprobeFeatures,)

    def __init__(self, modules: Sequence[str], order: str) -> None:
        self._modules = modules
        self._order = order

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the calls of these modules."""
        observer, wishes = recorder.observer(self.quantity), needed(backend, MsprobeFeatures)

        def called(name: str, args: tuple[Any, ...]) -> None:
            if observer.watching:
                if len(args) < 2:
                    raise ValueError(f"'{name}' was called with {len(args)} inputs, not with queries and keys")
                rows = wishes.first_head_rows(name, args[0], args[1], self._order)
                for column in ("entropy", "softmax_max"):
                    observer.observe(f"{name}:{column}", rows[column])

        wishes.on_modules_called(self._modules, recorder.guarded(self.quantity, called))


class _OfMatrices(ABC):
    """Numbers of modules' weight matrices, as the forward passes of the step used them."""

    quantity: ClassVar[str]
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (MsprobeFeatures,)

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = modules

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the beginning of updates."""
        observer, wishes = recorder.observer(self.quantity), needed(backend, MsprobeFeatures)

        def update_began(optimizer: Any) -> None:
            if not observer.watching:
                return
            for name, matrix in wishes.matrices(self._modules).items():
                for column, number in self.measure(wishes, name, matrix).items():
                    observer.observe(f"{name}:{column}", number, is_latest=True)

        backend.on_update_began(recorder.guarded(self.quantity, update_began))

    @abstractmethod
    def measure(self, wishes: MsprobeFeatures, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """The numbers of one matrix, by column."""


class KernelNorms(_OfMatrices):
    """The largest singular value of a layer's matrix, and the Frobenius norm over it."""

    quantity: ClassVar[str] = "linear_hook"

    def measure(self, wishes: MsprobeFeatures, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """`kernel_norm` and `sr`."""
        return dict(zip(("kernel_norm", "sr"), wishes.matrix_norms(name, matrix), strict=True))


class RouterWeights(_OfMatrices):
    """How alike the vectors of a router's experts are: their mean cosine, over all pairs."""

    quantity: ClassVar[str] = "moe_router_weight_hook"

    def measure(self, wishes: MsprobeFeatures, name: str, matrix: Tensor) -> dict[str, Tensor]:
        """`router_weight_similarity`."""
        return {"router_weight_similarity": wishes.mean_cosine(matrix)}


class RouterLogits:
    """How undecided a router is: the entropy of its choice, averaged over tokens."""

    quantity: ClassVar[str] = "moe_router_logit_hook"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (MsprobeFeatures,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Get ready; what the routers return is handed to `returned`."""
        observer, wishes = recorder.observer(self.quantity), needed(backend, MsprobeFeatures)

        def returned(name: str, args: Any, kwargs: Any, output: Any) -> None:
            if observer.watching:
                items = output if isinstance(output, (list, tuple)) else [output]
                entropy = wishes.choice_entropy(items)
                if entropy is None:
                    raise ValueError(f"'{name}' returned no tensor of logits")
                observer.observe(f"{name}:per_token_expert_entropy", entropy)

        self.returned = recorder.guarded(self.quantity, returned)
