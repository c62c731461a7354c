"""A watched torch model: its training loop, and where its tensors are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols import loop_capabilities as of_loop
from vario.backends.protocols.backend import Capability
from vario.backends.protocols.collectives import CollectiveFollower
from vario.backends.protocols.companions import Companions
from vario.backends.protocols.events import Events
from vario.backends.protocols.loss_graphs import LossGraphs
from vario.backends.protocols.losses import BackwardLoss
from vario.backends.protocols.msprobe_wishes import MsprobeFeatures, MsprobeMomentum, MsprobeWishes
from vario.backends.protocols.observing import Later, Observer, RowHashes, TimeMark
from vario.backends.torch import process
from vario.backends.torch.collectives import tap
from vario.backends.torch.loop import model_outputs, timed_calls
from vario.backends.torch.loop.companions import CompanionModels
from vario.backends.torch.loop.sparse_hooks import SparseHooks, has_compiled
from vario.backends.torch.loop.training_loop import TrainingLoop
from vario.backends.torch.modules.module_internals import InsideModel
from vario.backends.torch.modules.pass_work import PassWork
from vario.backends.torch.modules.spectra import SpectralNorms, stable_rank
from vario.backends.torch.msprobe_wishes import TorchWishes
from vario.backends.torch.optimizer import clipping
from vario.backends.torch.optimizer.update_rows import UpdateRows
from vario.backends.torch.reduce import host_copy
from vario.backends.torch.reduce.distributions import TorchDistributions
from vario.backends.torch.reduce.input_samples import held_inputs, input_samples
from vario.backends.torch.reduce.row_hashes import row_hashes
from vario.backends.torch.reduce.sketches import TorchSketch
from vario.backends.torch.reduce.summaries import TorchSummaries
from vario.backends.torch.targets import NamedTensors, Targets
from vario.core.records import ROOT, HostCopy, Structure
from vario.core.selector import Choice

_BY_ITSELF: frozenset[type] = frozenset(
    {
        offered.AppliedGradients,
        offered.ModuleTensors,
        offered.LocalGradients,
        offered.UpdateSamples,
        offered.Sketches,
        offered.Spectra,
        offered.Collectives,
        offered.Batches,
        offered.InputSamples,
        offered.Losses,
        offered.LossTargets,
        LossGraphs,
        of_loop.TrainerReports,
        of_loop.TrainerPasses,
        offered.DeviceClock,
        of_loop.LoopTimes,
        offered.Clipping,
        offered.Snapshots,
        offered.FoundModels,
    }
)
_BY_TARGETS: frozenset[type] = frozenset(
    {
        offered.OptimizerState,
        offered.TrainingSettings,
        offered.KeptGradients,
        offered.Replicas,
        offered.DeviceMemory,
    }
)
_BY_MODULES: frozenset[type] = frozenset(
    {offered.Attention, offered.Routers, offered.RouterLogits, offered.SilentUnits, offered.Channels}
)
_BY_WISHES: frozenset[type] = frozenset({MsprobeWishes, MsprobeFeatures, MsprobeMomentum})

log = logging.getLogger("vario")


class TorchModel(TrainingLoop):
    """Follows one or several modules and the optimizers that update them."""

    def __init__(self, models: Any, optimizers: Any, selector: Choice, scaler: Any, engine: str | None = None) -> None:
        self.rank, self.world_size = process.rank_and_world_size()
        self.versions = process.versions()
        super().__init__(Targets(models, selector, _as_list(optimizers), engine), scaler)
        self.inside = InsideModel(self.targets, self._is_training_pass, self._calls.module_calls)
        self._spectral_norms = SpectralNorms()
        self._pass_work = PassWork(self.targets)
        self._distributions = TorchDistributions()
        self._companions = CompanionModels(self.targets.all_parameters)
        self._undo.add(self._pass_work.end_count)
        self._undo.add(self._companions.forget)
        self._collective_followers: list[CollectiveFollower] = []
        self._update_rows: UpdateRows | None = None
        self._held_inputs: dict[str, Callable[[], Sequence[tuple[str, int]]]] = {}
        self._asked: torch.cuda.Event | None = None
        self._sparse_hooks: list[SparseHooks] = []
        self._rank_is_sure = False
        self.on_pass_began(lambda *_: self._check_rank())

    def attach(self, events: Events) -> None:
        """Start following the training loop, and then its collectives."""
        try:
            # Before the loop, whose hook on the outermost module has to run first.
            self._undo.add(self.inside.attach(events.switch_off))
            super().attach(events)
            self._sparse_hooks += self.inside.sparse_hooks
            if self._module_tensors is not None:
                self._sparse_hooks.append(self._module_tensors.hooks)
            if self._update_rows is not None:
                self._undo.add(self._update_rows.forget)
            if self._calls.timed:
                timed = events.guarded("loop_times", self._timed)
                undo = timed_calls.follow(timed, events.guarded("loop_times", self._workers_came))
                self._undo.add(undo)
            if self._calls.clipped:
                self._undo.add(clipping.follow(events.guarded("clipping", self._clipped)))
            for follower in self._collective_followers:
                self._undo.add(tap.follow(follower))
        except BaseException:
            self.detach()  # a caller that catches it continues with the model as it was
            raise

    @property
    def is_light(self) -> bool:
        """Whether only plain numbers are told of the step in progress."""
        return self._light.is_on

    @property
    def is_regular(self) -> bool:
        """Whether the loop does the same in every step."""
        return self._light.is_regular

    @property
    def num_backwards(self) -> int:
        """Backward passes of each step, if the loop does the same in every step; else 0."""
        return self._light.num_backwards

    def step_began(self) -> None:
        """Adapt to the quantities that are recorded in the step that begins."""
        self._light.step_began()
        is_compiled = has_compiled()
        for sparse in self._sparse_hooks:
            # Hooks of a part that is put back would run before the one that begins the pass with it.
            sparse.step_began(is_compiled, self._light.is_regular and not self._follows_entries)

    def _check_rank(self) -> None:
        """Warn once if a process group that was created later contradicts the launcher."""
        if self._rank_is_sure:
            return
        self._rank_is_sure = True
        rank, world_size = process.rank_and_world_size()
        if (rank, world_size) != (self.rank, self.world_size):
            log.warning(
                "this process is rank %d of %d, but vario.watch was called before init_process_group, as rank %d "
                "of %d: ranks may not end up in the same run. Call vario.watch after init_process_group.",
                rank,
                world_size,
                self.rank,
                self.world_size,
            )

    def on_collectives(self, follower: CollectiveFollower) -> None:
        """Report every collective of this process to the follower, whoever calls it."""
        self._collective_followers.append(follower)

    def on_updates(self, observer: Observer) -> None:
        """Pass what updates do to each parameter, and the optimizer's state of health, to this observer."""
        self._followed_updates().update = observer

    def on_unexpected_changes(self, observer: Observer) -> None:
        """Pass what changed parameters between updates to this observer."""
        self._followed_updates().unexpected = observer

    def _followed_updates(self) -> UpdateRows:
        if self._update_rows is None:
            self._update_rows = UpdateRows(
                self.targets, self.targets.optimizer_scale, lambda: self._light.num_backwards > 0
            )
            # Also of light steps: samples are compared with those of the next step, whatever it records.
            self.on_update_called(self._update_rows.called, even_light=True)
            self.on_update_began(self._update_rows.began)
            self.on_update_returned(self._update_rows.returned, even_light=True)
            self.on_update_ended(self._update_rows.ended, even_light=True)
        return self._update_rows

    def is_busy_elsewhere(self) -> bool:
        """Whether another thread is training the model right now."""
        return self.turns.is_busy_elsewhere()

    def losses_came(self, losses: Sequence[BackwardLoss]) -> None:
        """Report the losses of backward passes from before the model was watched."""
        for loss in losses:
            self._calls.tell_of_loss(loss)

    def summaries(self, eps: float, columns: frozenset[str]) -> TorchSummaries:
        """Return what reduces this model's tensors."""
        made = TorchSummaries(eps, columns)
        self._calls.number_with_rows = made.number
        return made

    def structure(self) -> Structure:
        """Return modules and parameters, as in `structure.json`."""
        return self.targets.structure()

    def holds(self, model: Any) -> bool:
        """Whether this backend watches the model, or a part of it."""
        return self.targets.hold(model)

    def weights(self, optimizer: Any) -> NamedTensors:
        """Return names and values of the chosen parameters of an optimizer; without one, of all trainable ones."""
        return self.targets.weights(optimizer)

    def frozen_weights(self) -> NamedTensors:
        """Return names and values of the chosen parameters that require no gradient."""
        return self.targets.frozen_weights()

    def offer(self, capability: type[Capability]) -> Capability | None:
        """Return the implementation of a capability; None if there is none."""
        found: Any = None
        if capability in _BY_ITSELF:
            found = self
        elif capability in _BY_TARGETS:
            found = self.targets
        elif capability in _BY_MODULES:
            found = self.inside
        elif capability is of_loop.PassWork:
            found = self._pass_work
        elif capability is Companions:
            found = self._companions
        elif capability is offered.Distributions:
            found = self._distributions
        elif capability in _BY_WISHES:
            found = TorchWishes(self)
        return found  # type: ignore[no-any-return]

    # Capabilities it implements itself

    def are_updated_by(self, optimizer: Any) -> bool:
        """Whether an optimizer has any of its parameters."""
        return self.targets.are_updated_by(optimizer)

    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Return names and gradients as an optimizer gets them; without one, as backward left them."""
        return self.complete_gradients().named() if optimizer is None else self.targets.applied_gradients(optimizer)

    def optimizer_scale(self, optimizer: Any) -> torch.Tensor | None:
        """Return the scale these gradients still have."""
        return self.targets.optimizer_scale(optimizer)

    def new_sketch(self, size: int, seed: int) -> TorchSketch:
        """Return an empty random projection to `size` numbers; those of one seed can be compared."""
        return TorchSketch(size, seed)

    def separate_gradients(self) -> None:
        """Record for an input's gradient only what its module adds, not the tensor's gradient from all its users."""
        self._calls.separates_gradients = True

    def spectra(self) -> NamedTensors:
        """Return `<module>:spectral_norm` and `<module>:stable_rank` of each matrix; no embeddings, no shards."""
        names: list[str] = []
        tensors: list[torch.Tensor] = []
        for name, matrix in self._spectral_norms.matrices(self.targets.modules).items():
            norm = self._spectral_norms.measure(name, matrix)
            names += [f"{name}:spectral_norm", f"{name}:stable_rank"]
            tensors += [norm, stable_rank(matrix, norm)]
        return names, tensors

    def kept_of(self, names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what this rank keeps for these parameters: `name:weight`, `name:gradient`, and optimizer state."""
        known = [each for each in self.updaters.known() if self._is_ours(each)]
        return host_copy.kept_of(self.engine, known, names)

    def host_copy(self, tensor: torch.Tensor, most_bytes: int, sample_bytes: int) -> HostCopy | None:
        """Return a copy on the host, sampled down if it takes more bytes than that; None if it cannot be read."""
        return host_copy.host_copy(tensor, most_bytes, sample_bytes)

    def loss_in(self, output: Any) -> Later | None:
        """Return the loss in a model's output, if there is one."""
        return model_outputs.loss_in(output)

    def row_hashes(self, inputs: Any) -> Callable[[], RowHashes] | None:
        """Start hashing the rows of a batch (nested tensors, or inputs of a model); None if it has no rows."""
        return row_hashes(inputs)

    def input_samples(self, inputs: Any) -> Sequence[tuple[str, Later]]:
        """Start reading a sample of each tensor in a model's inputs, the same elements each time: name and numbers."""
        return input_samples(inputs)

    def hold_inputs(self, root: str, inputs: Any) -> None:
        """Remember what a model is called with, without keeping it alive."""
        self._held_inputs[root] = held_inputs(inputs)

    def non_finite_inputs(self) -> Sequence[tuple[str, int]]:
        """Count elements of the models' latest inputs that are NaN or +Inf, in those that still exist."""
        return [
            (f"{root or ROOT}:{name}", number) for root, held in self._held_inputs.items() for name, number in held()
        ]

    def on_timed(self, call: Callable[[str, float, float], None]) -> None:
        """Call `call` with what the loop does besides training passes and updates, and its two ends."""
        self._calls.timed.append(call)

    def on_workers(self, call: Callable[[int], None]) -> None:
        """Call `call` with the number of worker processes of the loader of each batch."""
        self._calls.workers.append(call)

    def _timed(self, kind: str, began: float, ended: float) -> None:
        for call in self._calls.timed:
            call(kind, began, ended)

    def _workers_came(self, number: int) -> None:
        for call in self._calls.workers:
            call(number)

    def on_clipped(self, call: Callable[[Callable[[], float], float], None], may_copy: Callable[[], bool]) -> None:
        """Call `call` with the norm before clipping and the limit; for a norm on a device only if `may_copy()`."""
        self._calls.clipped.append((call, may_copy))

    def _clipped(self, parameters: Any, limit: Any, norm: Any) -> None:
        given = parameters if isinstance(parameters, (list, tuple)) else [parameters]
        if not self.turns.takes_part() or not any(id(each) in self.engine.names for each in given):
            return
        is_here = not isinstance(norm, torch.Tensor) or norm.is_cpu
        for call, may_copy in self._calls.clipped:
            if (is_here or may_copy()) and (later := clipping.norm_later(norm)) is not None:
                call(later, float(limit))

    def time_mark(self) -> TimeMark:
        """Return a mark of the current time."""
        return model_outputs.time_mark(self._device)

    def is_behind(self) -> bool:
        """Whether the GPU has not yet finished the work queued before the last call."""
        if self._device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return False
        before, self._asked = self._asked, torch.cuda.Event()
        self._asked.record(torch.cuda.current_stream(self._device))
        return before is not None and not before.query()


def _as_list(optimizers: Any) -> list[Any]:
    if optimizers is None:
        return []
    return list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
