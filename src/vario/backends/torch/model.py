"""A torch model under watch: its training loop, and where its tensors are."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from vario.backends.base import Events, LateObserver, Later, RowHashes, TimeMark
from vario.backends.collectives import CollectiveFollower
from vario.backends.losses import BackwardLoss
from vario.backends.torch import process
from vario.backends.torch.collectives import tap
from vario.backends.torch.loop import discovery, model_outputs
from vario.backends.torch.loop.training_loop import TrainingLoop
from vario.backends.torch.modules.attention import attention_rows, is_causal
from vario.backends.torch.modules.module_internals import InsideModel
from vario.backends.torch.modules.spectra import SpectralNorms, stable_rank
from vario.backends.torch.optimizer import learning_rates
from vario.backends.torch.optimizer.update_rows import UpdateRows
from vario.backends.torch.reduce import host_copy
from vario.backends.torch.reduce.row_hashes import row_hashes
from vario.backends.torch.reduce.summaries import TorchSummaries
from vario.backends.torch.reduce.tensors import form, why_without_numbers
from vario.backends.torch.targets import Targets
from vario.core.records import HostCopy, Mesh, TensorSpec
from vario.core.selector import Choice, modules_matching

log = logging.getLogger("vario")


class TorchModel(TrainingLoop):
    """Follows one or several modules and the optimizers that update them."""

    def __init__(self, models: Any, optimizers: Any, selector: Choice, scaler: Any, engine: str | None = None) -> None:
        self.rank, self.world_size = process.rank_and_world_size()
        self.versions = process.versions()
        super().__init__(Targets(models, selector, _as_list(optimizers), engine), scaler)
        self.inside = InsideModel(self.targets, self._is_training_pass)
        self._spectral_norms = SpectralNorms()
        self._collective_followers: list[CollectiveFollower] = []
        self._update_rows: UpdateRows | None = None
        self._device = next(iter(self.targets.all_parameters.values())).device
        self._rank_is_sure = False
        self.on_pass_began(lambda *_: self._check_rank())

    def attach(self, events: Events) -> None:
        """Start following the training loop, and then what ranks say to each other in it."""
        try:
            # Before the loop, whose hook on the outermost module has to be the first to run.
            self._undo.add(self.inside.attach())
            super().attach(events)
            if self._update_rows is not None:
                self._undo.add(self._update_rows.forget)
            for follower in self._collective_followers:
                self._undo.add(tap.follow(follower))
        except BaseException:
            self.detach()  # whoever catches it goes on with the model as it was
            raise

    def _check_rank(self) -> None:
        """Say, once, where a process group that came after all tells other than the launcher did."""
        if self._rank_is_sure:
            return
        self._rank_is_sure = True
        rank, world_size = process.rank_and_world_size()
        if (rank, world_size) != (self.rank, self.world_size):
            log.warning(
                "this process is rank %d of %d, but the model was watched before there was a process group, as rank %d "
                "of %d: ranks may not share a run. Call vario.watch after init_process_group.",
                rank,
                world_size,
                self.rank,
                self.world_size,
            )

    def on_collectives(self, follower: CollectiveFollower) -> None:
        """Tell of every collective operation this process takes part in, whoever calls it."""
        self._collective_followers.append(follower)

    def on_updates(self, observer: LateObserver) -> None:
        """Hand what updates do to each parameter, and what shape the optimizer is in, to this observer."""
        self._followed_updates().update = observer

    def on_stray_changes(self, observer: LateObserver) -> None:
        """Hand what changed parameters between updates to this observer."""
        self._followed_updates().stray = observer

    def _followed_updates(self) -> UpdateRows:
        if self._update_rows is None:
            self._update_rows = UpdateRows(self.targets, self.optimizer_scale)
            self.on_update_called(self._update_rows.called)
            self.on_update_began(self._update_rows.began)
            self.on_update_ended(self._update_rows.ended)
        return self._update_rows

    def is_busy_elsewhere(self) -> bool:
        """Whether another thread trains the model at this moment."""
        return self.turns.is_busy_elsewhere()

    def losses_came(self, losses: Sequence[BackwardLoss]) -> None:
        """Tell of what the loop went back from before it was followed."""
        for loss in losses:
            self._tell_of_loss(loss)

    @property
    def clips_in_step(self) -> bool:
        """Whether a runtime's own `step` clips gradients, where no loop comes between."""
        return self.engine.clips_in_step

    @property
    def mesh(self) -> Mesh:
        """The dimensions ranks are arranged in: their sizes, and where this one is."""
        return self.engine.mesh()

    def summaries(self, eps: float, columns: frozenset[str]) -> TorchSummaries:
        """What reduces this model's tensors."""
        return TorchSummaries(eps, columns)

    def why_skipped(self, tensor: torch.Tensor) -> str:
        """Why a tensor has no Summary, in words."""
        return why_without_numbers(tensor)

    def describe(self, tensor: torch.Tensor) -> TensorSpec:
        """Shape and dtype of a tensor."""
        return form(tensor)

    # Where the tensors are

    def gradients(self, optimizer: Any = None, replicas: bool = False) -> tuple[list[str], list[torch.Tensor]]:
        """Names and gradients: as one optimizer gets them, or reduced, of all that this step has not updated yet.

        The latter with `replicas` also of parameters that another rank records.
        """
        if optimizer is not None:
            return self.targets.applied_gradients(optimizer)
        parameters = self.targets.parameters
        names = [name for name in self._accumulation.fired if name in parameters]
        names += [name for name in parameters if name not in self._accumulation.fired]
        if self.clock.has_update:
            names = [name for name in names if not self.clock.has_updated(id(parameters[name]))]
        return self.targets.gradients(names, replicas)

    def kept_of(self, names: Sequence[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """What this rank keeps of these parameters: `name:weight`, `name:gradient`, and its optimizer's state."""
        known = self._given_optimizers or discovery.live_optimizers()
        return host_copy.kept_of(self.engine, [each for each in known if self._is_ours(each)], names)

    def host_copy(self, tensor: torch.Tensor, most_bytes: int, sample_bytes: int) -> HostCopy | None:
        """A copy on the host, cut to a sample where it takes more bytes than that; None: it shows no numbers."""
        return host_copy.host_copy(tensor, most_bytes, sample_bytes)

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Names of all modules that match, chosen as targets or not; a pattern that matches none is refused."""
        return modules_matching(patterns, list(self.targets.all_modules))

    def attention_rows(
        self, name: str, query: torch.Tensor, key: torch.Tensor, order: str, first_only: bool = False
    ) -> dict[str, torch.Tensor]:
        """Entropy, largest probability and largest logit of each row of a module's attention."""
        causal = is_causal(self.targets.all_modules[name])
        return attention_rows(query, key, order, causal=causal, first_only=first_only)

    def matrices(self, names: Sequence[str] | None = None) -> dict[str, torch.Tensor]:
        """The two-dimensional weights of these modules or of the chosen targets; embeddings and shards are left out."""
        modules = self.targets.modules
        if names is not None:
            modules = {name: self.targets.all_modules[name] for name in names}
        return self._spectral_norms.matrices(modules)

    def spectral_norm(self, name: str, matrix: torch.Tensor) -> torch.Tensor:
        """The largest singular value of a matrix, followed from step to step under a name."""
        return self._spectral_norms.measure(name, matrix)

    def stable_rank(self, matrix: torch.Tensor, spectral_norm: torch.Tensor) -> torch.Tensor:
        """The sum of a matrix's squared singular values over the largest one squared."""
        return stable_rank(matrix, spectral_norm)

    def learning_rates(self, optimizer: Any) -> Later:
        """The learning rate of each of an optimizer's groups as it is now; NaN where there is none."""
        return learning_rates.learning_rates(optimizer.param_groups)

    def loss_in(self, output: Any) -> Later | None:
        """The loss that a model returned, or has in what it returned, if it has."""
        return model_outputs.loss_in(output)

    def row_hashes(self, inputs: Any) -> Callable[[], RowHashes] | None:
        """Begin to hash the rows of a batch, a nest of tensors or the inputs of a model; None where it has none."""
        return row_hashes(inputs)

    def time_mark(self) -> TimeMark:
        """This moment."""
        return model_outputs.time_mark(self._device)

    def optimizer_scale(self, optimizer: Any) -> torch.Tensor | None:
        """What the gradients an optimizer gets are still multiplied by: fused ones unscale by themselves."""
        scale: torch.Tensor | None = getattr(optimizer, "grad_scale", None)
        return scale


def _as_list(optimizers: Any) -> list[Any]:
    if optimizers is None:
        return []
    return list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
