"""What PyNative mode and graph mode have in common: cells, parameters, optimizers and who asked for what."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from mindspore import Tensor

from vario.backends.mindspore import optimizers as states
from vario.backends.mindspore.losses import found_loss
from vario.backends.mindspore.process import rank_and_world_size
from vario.backends.mindspore.releases import check_numpy, versions
from vario.backends.mindspore.replicas import SharingRanks
from vario.backends.mindspore.row_hashes import row_hashes
from vario.backends.mindspore.summaries import MindSporeSummaries
from vario.backends.mindspore.targets import Targets
from vario.backends.mindspore.tensors import dtype_name, on_host
from vario.backends.mindspore.updates import UpdateRows
from vario.backends.module_attributes import ModuleAttributes
from vario.backends.protocols.backend import Backend
from vario.backends.protocols.events import Events, LoopCalls
from vario.backends.protocols.gradients import PushedGradients
from vario.backends.protocols.losses import BackwardLoss
from vario.backends.protocols.observing import Later, NamedTensors, Observer, RowHashes
from vario.core.clock import Clock
from vario.core.errors import ModelError
from vario.core.records import HostCopy, Mesh, Structure

log = logging.getLogger("vario")


@dataclass(frozen=True)
class StepGradients(PushedGradients):
    """The gradients of a step, of which another rank may record those that all have."""

    is_left_to_others: bool = False

    def named(self, replicas: bool = False) -> NamedTensors:
        """Return them; with `replicas` also those that another rank records."""
        return ([], []) if self.is_left_to_others and not replicas else (self.names, self.tensors)

    def in_any_order(self) -> NamedTensors:
        """Return the same."""
        return self.named()


class FollowedCells(Backend):
    """One or several cells and the optimizers that update them."""

    engine_name: ClassVar[str]
    returns_loss = False
    losses_add_up = False

    def __init__(self, models: Any, optimizers: Sequence[Any], selector: Any, scaler: Any) -> None:
        check_numpy()
        super().__init__(LoopCalls())
        self.rank, self.world_size = rank_and_world_size()
        self.versions = versions()
        self.clock = Clock()
        self.targets = Targets(models, selector)
        for optimizer in optimizers:
            if not hasattr(optimizer, "parameters"):
                raise ModelError(f"watch: expected a MindSpore optimizer, got {type(optimizer).__name__}")
            if not self.targets.are_updated_by(optimizer):
                raise ModelError(
                    f"watch: {type(optimizer).__name__} has none of the model's parameters. Was the model replaced "
                    "or copied after the optimizer was created?"
                )
        if optimizers:
            self.clock.expect(number for one in optimizers for number in self.targets.numbers_of(one.parameters))
        self._optimizers = list(optimizers)
        self._attributes = ModuleAttributes(self.targets.all_cells)
        self._scaler = scaler
        self._sense: Any = None
        self._events: Events
        self._undos: list[Callable[[], None]] = []
        self._handles: list[Any] = []
        self._local_calls: list[Callable[[str, Any], None]] = []
        self._accumulated_calls: list[Callable[[str, Any], None]] = []
        self._loss_calls: list[Callable[[BackwardLoss], None]] = []
        self.replicas = SharingRanks(self.targets, self.rank, self.world_size)
        self._update_rows: UpdateRows | None = None

    @abstractmethod
    def applied_gradients(self, optimizer: Any) -> NamedTensors:
        """Return names and gradients that an optimizer is about to use."""

    def detach(self) -> None:
        """Leave the cells and MindSpore as they were."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        while self._undos:
            self._undos.pop()()
        if self._update_rows is not None:
            self._update_rows.forget()

    def sinking_began(self, model: Any) -> None:
        """Say that steps which run inside one call on the device are not seen."""
        if self.targets.hold(model):
            log.warning(
                "dataset_sink_mode=True: one call runs many steps on the device, and vario sees none of them. Pass "
                "dataset_sink_mode=False to Model.train to record this training."
            )

    # Model and parameters

    def summaries(self, eps: float, columns: frozenset[str]) -> MindSporeSummaries:
        """Return what reduces this model's tensors."""
        return MindSporeSummaries(eps, columns)

    def structure(self) -> Structure:
        """Return cells and parameters, as in `structure.json`."""
        return self.targets.structure(self.engine_name, self.replicas.ranks)

    def holds(self, model: Any) -> bool:
        """Whether this backend watches the model, or a part of it."""
        return self.targets.hold(model)

    def weights(self, optimizer: Any) -> NamedTensors:
        """Return names and values of the chosen parameters of an optimizer; without one, of all trainable ones."""
        return ([], []) if self.replicas.is_left_to_others else self._weights_here(optimizer)

    def _weights_here(self, optimizer: Any) -> NamedTensors:
        if optimizer is None:
            return self.targets.values(lambda parameter: parameter.requires_grad)
        found = self.targets.parameters_of(optimizer)
        return [name for _, name, _ in found], [parameter for _, _, parameter in found]

    def frozen_weights(self) -> NamedTensors:
        """Return names and values of the chosen parameters that require no gradient."""
        if self.replicas.is_left_to_others:
            return [], []
        return self.targets.values(lambda parameter: not parameter.requires_grad)

    # Optimizers

    def moments(self, optimizer: Any) -> NamedTensors:
        """Return names (`weight:exp_avg`) and values of an optimizer's state."""
        return ([], []) if self.replicas.is_left_to_others else states.moments(self.targets, optimizer)

    def learning_rates(self, optimizer: Any) -> Later:
        """Return the current learning rate of each group."""
        return states.learning_rates(optimizer)

    def initial_rate(self, optimizer: Any) -> float | None:
        """Return None: MindSpore's schedules are functions of the step, which start from no rate of their own."""
        return None

    def is_scheduled(self, optimizer: Any) -> bool | None:
        """Whether the optimizer's own schedule sets its rates; None if it has none."""
        return True if getattr(optimizer, "dynamic_lr", False) else None

    def optimizer_scale(self, optimizer: Any) -> Any:
        """Return the scale that the gradients an optimizer gets still have: it divides by it itself."""
        return None if optimizer is None else states.scale_inside(optimizer)

    def are_updated_by(self, optimizer: Any) -> bool:
        """Whether an optimizer has any of the parameters."""
        return self.targets.are_updated_by(optimizer)

    def on_updates(self, observer: Observer) -> None:
        """Pass what updates do to each parameter to this observer."""
        self._followed_updates().update = observer

    def on_unexpected_changes(self, observer: Observer) -> None:
        """Pass what changed parameters between updates to this observer."""
        self._followed_updates().unexpected = observer

    def _followed_updates(self) -> UpdateRows:
        if self._update_rows is None:
            self._update_rows = UpdateRows(self.targets, self.applied_gradients)
            self.on_update_called(self._update_rows.called)
            self.on_update_began(self._update_rows.began)
            self.on_update_ended(self._update_rows.ended)
        return self._update_rows

    # What all ranks have

    @property
    def mesh(self) -> Mesh:
        """The dimensions of the arrangement of ranks."""
        return self.replicas.mesh

    @property
    def replicated(self) -> list[str]:
        """The chosen parameters that other ranks have as well."""
        return self.replicas.replicated

    def leave_to_others(self, rank: int, recording: Collection[int]) -> None:
        """Set which ranks record: the first of them records what all have."""
        self.replicas.leave_to_others(rank, recording)

    def gradient_checksums(self, optimizer: Any) -> NamedTensors:
        """Return names and checksums of the gradients that other ranks have as well."""
        return self.replicas.checksums("gradient", self.applied_gradients(optimizer))

    def weight_checksums(self, optimizer: Any) -> NamedTensors:
        """Return names and checksums of the weights that other ranks have as well."""
        return self.replicas.checksums("weight", self._weights_here(optimizer))

    # Batches and snapshots

    def row_hashes(self, inputs: Any) -> Callable[[], RowHashes] | None:
        """Return a call that hashes the rows of a batch; None if it has no rows."""
        return row_hashes(inputs)

    def kept_of(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Yield the weight of each of these parameters, and the state of the optimizers that are known."""
        for name in names:
            parameter = self.targets.all_parameters[name]
            yield f"{name}:weight", parameter
            for optimizer in self._optimizers:
                places = {id(one): place for place, one in enumerate(optimizer.parameters)}
                if id(parameter) in places:
                    for key, values in states.state_of(optimizer).items():
                        yield f"{name}:{key}", values[places[id(parameter)]]

    def host_copy(self, tensor: Any, most_bytes: int, sample_bytes: int) -> HostCopy | None:
        """Return a copy on the host, sampled down if it takes more bytes than that."""
        array = on_host(tensor)
        stride = 1 if array.nbytes <= most_bytes else -(-array.nbytes // max(sample_bytes, array.itemsize))
        taken = array.copy() if stride == 1 else array.reshape(-1)[::stride].copy()
        return HostCopy(taken, dtype_name(tensor.dtype), tuple(tensor.shape), stride)

    # Settings

    def settings(self) -> dict[str, float]:
        """Return what is trained as numbers that stay constant in ordinary training."""
        return {
            "modules_in_eval": float(len(self.modules_in_eval())),
            "trainable_parameters": float(sum(bool(one.requires_grad) for one in self.targets.all_parameters.values())),
        }

    def optimizer_settings(self, optimizer: Any) -> dict[str, float]:
        """Return an optimizer's options as numbers that stay constant in ordinary training."""
        return {"parameters_in_optimizer": float(len(optimizer.parameters)), **states.settings(optimizer)}

    def changed_attributes(self) -> dict[str, tuple[float, float]]:
        """Return numbers of cells that have changed since the last call: the old and the new value."""
        return self._attributes.changed()

    def left_out(self, optimizers: Collection[Any]) -> list[str]:
        """Return the names of parameters that have a gradient and are in none of these optimizers."""
        return []  # gradients are returned to the loop, and it passes on those it wants

    def without_gradient(self, optimizer: Any) -> tuple[list[str], int]:
        """Return the names of parameters in an optimizer that require a gradient and have none, of how many."""
        return [], 0  # as above

    def trained_parameters(self) -> list[str]:
        """Return the names of the parameters that require a gradient."""
        return [name for name, one in self.targets.all_parameters.items() if one.requires_grad]

    def modules_in_eval(self) -> list[str]:
        """Return the names of the cells that are not set to train."""
        return [name for name, cell in self.targets.all_cells.items() if not cell.training]

    def unknown_parameters(self) -> list[str]:
        """Return the names of parameters added to the model after `vario.watch`."""
        return self.targets.unknown_parameters()

    # Gradients and losses

    def on_local_gradients(self, call: Callable[[str, Any], None]) -> None:
        """Call `call` with (name, gradient) for what each backward pass returns."""
        self._local_calls.append(call)

    def on_accumulated_gradients(self, call: Callable[[str, Any], None]) -> None:
        """Call `call` with (name, gradient) for this rank's gradients, before ranks reduce them."""
        self._accumulated_calls.append(call)

    def on_backward_loss(self, call: Callable[[BackwardLoss], None]) -> None:
        """Call `call` with the number that gradients were computed of."""
        self._loss_calls.append(call)

    def losses_came(self, losses: Sequence[BackwardLoss]) -> None:
        """Report the losses of backward passes from before the model was watched."""
        for loss in losses:
            for call in self._loss_calls:
                call(loss)

    def loss_in(self, output: Any) -> Later | None:
        """Return the loss in a cell's output, if it is one number."""
        loss = found_loss(output)
        return None if loss is None else lambda: np.asarray(on_host(loss)).reshape(-1)[0]

    def part_updated_by(self, optimizers: Collection[Any]) -> str:
        """Return no part: losses are not told apart by optimizer."""
        return ""

    def loss_scale(self) -> Any:
        """Return what the gradients of this step are multiplied by."""
        if self._sense is not None:
            return self._sense
        return self._scale_in_loss()

    def _scale_in_loss(self) -> Any:
        """Return what the loop multiplies its loss by (the `scaler` it gave); None if there is none."""
        scale = getattr(self._scaler, "scale_value", None)
        return scale if isinstance(scale, Tensor) else None

    def is_busy_elsewhere(self) -> bool:
        """Whether another thread is training the model right now: not followed."""
        return False
