"""Probes of the monitors: what vario does not record by itself, or not for chosen parameters only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend
from vario.backends.protocols.events import Inputs
from vario.backends.protocols.losses import BackwardLoss
from vario.backends.protocols.observing import Later, Tensor
from vario.compat.mindformers import numbers
from vario.compat.mindformers.flops import flops_per_sample
from vario.compat.mindformers.numbers import Surroundings
from vario.compat.mindformers.settings import Settings
from vario.core.errors import TrainingStop
from vario.core.parameter_list import by_kind
from vario.core.records import COUNT, MAX, MIN, SUM, SUM_SQUARES, Table, empty_table
from vario.probes import Needs, Recorder

log = logging.getLogger("vario")

NOT_DATA = ("tensor", "pipeline", "context", "expert", "tp", "pp", "cp", "ep")
"""Dimensions of a device mesh along which ranks share their rows."""
MOST_NESTED = 4
MOST_EXPERTS = 1 << 16
"""Places in the order of a step's rows that the experts of all routers get."""


class StructurePrinted(TrainingStop):
    """Raised to stop before training, because `print_struct` asked for the list of parameters only."""

    exit_code = 0


class StepNumbers:
    """Rows, micro-steps and loss scale of each step, and what follows from them and from other numbers."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._num_rows = 0
        self._losses: list[BackwardLoss] = []
        self._root: str | None = None
        self._is_shown = False

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to passes and to the end of steps."""
        self._recorder, self._clock = recorder, backend.clock
        parameters = _parameters(backend)
        if self._settings.monitor.monitor_on:
            _tell_of_unmatched(self._settings, list(parameters))
            if self._settings.monitor.print_struct:
                raise StructurePrinted(_structure_text(self._settings, parameters, is_shown=recorder.is_leading))
        self._scaling = backend.offer(offered.LocalGradients)
        around = surroundings(self._settings, backend, frozenset(parameters))
        guard = partial(recorder.guarded, "mindformers")
        recorder.frames.derivations.append(guard(partial(numbers.derive, self._settings, around)))
        backend.on_pass_began(guard(self._pass_began))
        backend.on_batch(guard(self._shown))
        losses = backend.offer(offered.Losses)
        if losses is not None and self._settings.monitor.on("local_loss"):
            losses.on_backward_loss(guard(self._loss_came))
        recorder.on_step_ended(guard(self._step_ended))

    def _pass_began(self, root: str, inputs: Inputs) -> None:
        if self._root not in (None, root):
            return
        self._root = root
        if not self._is_shown:
            self._num_rows += _rows_in(inputs) or 0

    def _shown(self, batch: Any) -> None:
        if not self._is_shown:
            self._is_shown, self._num_rows = True, 0
        self._num_rows += _rows_in(batch) or 0

    def _loss_came(self, loss: BackwardLoss) -> None:
        if loss.is_kept:
            self._losses.append(loss)

    def _step_ended(self, seconds: float) -> None:
        num_micro_steps = self._clock.micro_step + 1
        found: dict[str, Any] = {numbers.MICRO_STEPS: float(num_micro_steps)}
        losses, self._losses = self._losses, []
        if len(losses) == num_micro_steps > 1:
            fill = self._recorder.guarded("mindformers", partial(_fill_losses, losses))
            self._recorder.frames.log_when(fill)
        if self._num_rows:
            found[numbers.ROWS] = float(self._num_rows)
        scale = None if self._scaling is None else self._scaling.loss_scale()
        if scale is not None:
            found[numbers.LOSS_SCALE] = scale
        self._num_rows = 0
        self._recorder.log(**found)


class LocalNorms:
    """The gradient of each parameter on this rank, over the step's micro-steps, before ranks reduce it."""

    quantity: ClassVar[str] = "gradient_accumulated"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (offered.LocalGradients,)

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to each parameter's accumulation; the last one of a step counts."""
        passes = backend.offer(offered.LocalGradients)
        if passes is None:
            _tell_of_missing("local_norm and device_local_norm")
            return
        observer = recorder.observer(self.quantity, passes.loss_scale)
        wanted: dict[str, bool] = {}

        def accumulated(name: str, gradient: Tensor) -> None:
            if not observer.watching:
                return
            if name not in wanted:
                wanted[name] = self._is_wanted(name)
            if wanted[name]:
                observer.observe(name, gradient, is_latest=True)

        passes.on_accumulated_gradients(recorder.guarded(self.quantity, accumulated))


class ChosenMoments:
    """The optimizer's moments of chosen parameters, after the update."""

    quantity: ClassVar[str] = "moment"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (offered.OptimizerState,)

    def __init__(self, is_wanted: Callable[[str], bool]) -> None:
        self._is_wanted = is_wanted

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the end of updates."""
        state = backend.offer(offered.OptimizerState)
        if state is None:
            _tell_of_missing("adam_m_norm and adam_v_norm")
            return
        observer = recorder.observer(self.quantity)
        wanted: dict[str, bool] = {}

        def is_wanted(name: str) -> bool:
            if name not in wanted:
                wanted[name] = self._is_wanted(name.rpartition(":")[0])
            return wanted[name]

        def update_ended(optimizer: Any) -> None:
            if not observer.watching:
                return
            names, tensors = state.moments(optimizer)
            chosen = [at for at, name in enumerate(names) if is_wanted(name)]
            observer.observe_all([names[at] for at in chosen], [tensors[at] for at in chosen])

        backend.on_update_ended(recorder.guarded(self.quantity, update_ended))


class ExpertShares:
    """`<router>:ep_<n>`: the share of a router's tokens that each of its experts got, over the step's micro-steps."""

    quantity: ClassVar[str] = "expert"
    every: ClassVar[int] = 1
    needs: ClassVar[Needs] = (offered.Routers,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the outputs of the routers."""
        modules = backend.offer(offered.Routers)
        if modules is None:
            _tell_of_missing("expert_load")
            return
        named = recorder.config.experts
        routers = modules.modules_matching([*named]) if named else modules.routers()
        observer = recorder.observer(self.quantity)
        loads: dict[str, list[Later]] = {}

        def returned(name: str, items: tuple[Any, ...]) -> None:
            if observer.watching and (rows := modules.expert_rows(name, items)) is not None:
                loads.setdefault(name, []).append(modules.fetch_later(rows["load"]))

        def step_ended(seconds: float) -> None:
            nonlocal loads
            if loads:
                taken, loads = loads, {}
                observer.add_later(partial(_expert_rows, taken), MOST_EXPERTS)

        modules.on_modules_returned(routers, recorder.guarded(self.quantity, returned))
        recorder.on_step_ended(recorder.guarded(self.quantity, step_ended))


def _expert_rows(loads: Mapping[str, Sequence[Later]]) -> tuple[list[str], Table]:
    names: list[str] = []
    shares: list[float] = []
    for router, fetches in loads.items():
        of_passes = [np.asarray(fetch(), np.float64).ravel() for fetch in fetches]
        mean = np.mean(of_passes, axis=0) / len(of_passes[0])
        names += [f"{router}:ep_{number}" for number in range(len(mean))]
        shares += mean.tolist()
    table = empty_table(len(names))
    values = np.array(shares)
    table[:, COUNT] = 1.0
    for column, content in ((SUM, values), (SUM_SQUARES, values**2), (MIN, values), (MAX, values)):
        table[:, column] = content
    return names, table


def _fill_losses(losses: Sequence[BackwardLoss], scalars: dict[str, float]) -> None:
    """Add the loss of each micro-step, as it was before the loop divided it by their number."""
    for number, loss in enumerate(losses):
        scalars[f"{numbers.MICRO_LOSS}/{number}"] = loss.value() * loss.divisor


def surroundings(settings: Settings, backend: Backend, trainable: frozenset[str]) -> Surroundings:
    """Return what is known before the first step of a watched model."""
    replicas = backend.offer(offered.Replicas)
    mesh = {} if replicas is None else replicas.mesh
    shared = 1
    for name, (size, _) in mesh.items():
        shared *= size if name in NOT_DATA else 1
    model = settings.content.get("model")
    config = model.get("model_config") if isinstance(model, Mapping) else None
    return Surroundings(
        num_devices=backend.world_size,
        num_data_ranks=max(backend.world_size // shared, 1),
        flops_per_sample=flops_per_sample(config),
        trainable=trainable,
    )


def _parameters(backend: Backend) -> dict[str, Mapping[str, Any]]:
    """Return the trainable parameters and their descriptions."""
    found: dict[str, Mapping[str, Any]] = {}
    for names, kind in by_kind(backend.structure().get("parameters") or ()):
        if kind.get("trainable", True):
            found.update(dict.fromkeys(names, kind))
    return found


def _structure_text(settings: Settings, parameters: Mapping[str, Mapping[str, Any]], is_shown: bool) -> str:
    """Return the list that `print_struct` asks for: names, shapes, types, and which ones `target` chooses."""
    targets = settings.monitor.targets
    lines = [f"print_struct: {len(parameters)} trainable parameters (* chosen by `target`):"]
    for name, kind in parameters.items():
        shape = "x".join(map(str, kind.get("shape") or ())) or "scalar"
        lines.append(f"  {'*' if targets.choose(name) else ' '} {name}  {shape}  {kind.get('dtype', '')}".rstrip())
    lines.append("Training stops here as requested; set print_struct to false to train.")
    return "\n".join(lines if is_shown else lines[-1:])


def _tell_of_unmatched(settings: Settings, names: Sequence[str]) -> None:
    # No error: in a pipeline the parameter may be on another rank, which would then wait forever.
    for entry in settings.monitor.targets.unmatched(names):
        log.warning("monitor_config.target: '%s' matches no trainable parameter of this rank", entry)


def _tell_of_missing(what: str) -> None:
    log.warning("%s: not recorded, because the backend of this framework does not offer it", what)


def _rows_in(value: Any, depth: int = 0) -> int | None:
    """Return the rows of a batch: the length of the first tensor found in it."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else None
    if depth > MOST_NESTED:
        return None
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return next((found for part in parts if (found := _rows_in(part, depth + 1)) is not None), None)
