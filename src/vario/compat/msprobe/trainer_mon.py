"""msprobe's TrainerMon on vario's Monitor: the same calls, config and files."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from vario.backends.protocols.msprobe_wishes import MsprobeSide
from vario.compat.msprobe.blocks import UNREDUCED, Translation
from vario.compat.msprobe.communication import CommunicationLog
from vario.compat.msprobe.config import HOOKS, MonitorConfig
from vario.compat.msprobe.config_file import ConfigFile
from vario.compat.msprobe.heat_maps import HeatMaps
from vario.compat.msprobe.model_side import check_at_least, duplicates, is_optimizer, named_by_config, place_of, side_of
from vario.compat.msprobe.names import Names, TargetChoice
from vario.compat.msprobe.output import Output, Statistics, folder_to_continue, new_folder
from vario.compat.msprobe.probes import (
    Arrangement,
    Direction,
    FirstHead,
    GradientsThroughModules,
    IfOffered,
    KernelNorms,
    ReducedGradients,
    RouterLogits,
    RouterWeights,
    TrainedWeights,
    TrainedWeightsBefore,
    Updates,
)
from vario.compat.msprobe.sides import Sides, Stacks, Structure, StructureSaved
from vario.config import Config
from vario.core.errors import ModelError
from vario.core.process.switch import is_off
from vario.core.records import Frame
from vario.core.schedule import Schedule
from vario.probes import Probe
from vario.training.monitor import Monitor

log = logging.getLogger("vario")

_watching: weakref.WeakSet[TrainerMon] = weakref.WeakSet()
"""The TrainerMons with a model."""


class TrainerMon:
    """Watches a model like msprobe's TrainerMon: the same config file, the same output files."""

    def __init__(
        self,
        config_file_path: str | os.PathLike[str],
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: str | None = None,
    ) -> None:
        """Read the config; raises ConfigError if it is invalid.

        `params_have_main_grad` and `opt_ty` are accepted but not needed: the location of gradients is detected.
        """
        self._file = ConfigFile(config_file_path)
        self._config = MonitorConfig() if is_off() else self._file.read()
        self._place, self._world_size = place_of(process_group)
        self._is_dynamic = os.environ.get("DYNAMIC_MONITOR", "").lower() == "true"
        self._is_on = not self._is_dynamic and not is_off()
        self._schedule = Schedule()
        self._num_collected = 0
        self._optimizer: Any = None
        self._chunks: list[Any] = []
        self._side: MsprobeSide
        self._monitor: Monitor | None = None
        self._reduced: ReducedGradients | None = None
        self._structure: Structure | None = None
        self._stacks: Stacks | None = None
        self._communication: CommunicationLog | None = None
        self._undos: list[Callable[[], None]] = []
        self._restart_is_due = False
        self._is_closed = False
        folder = folder_to_continue(self._config, self._place.rank)
        self._output = Output(folder or new_folder(self._place.rank), self._place, continues=folder is not None)
        if self._is_on and self._writes:
            self._output.make_folder()

    # What a training script calls

    def set_monitor(
        self,
        model: Any,
        grad_acc_steps: Any = 1,
        optimizer: Any = None,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """Watch a model, or the chunks of a virtual pipeline, from step `start_iteration`."""
        if is_off():
            return
        if is_optimizer(grad_acc_steps) and not is_optimizer(optimizer):
            # msprobe's own order of arguments differs from the one it documents.
            grad_acc_steps, optimizer = optimizer, grad_acc_steps
            dp_group, tp_group = tp_group, dp_group
        chunks = list(model) if isinstance(model, (list, tuple)) else [model]
        side = side_of(chunks, optimizer)
        if self._monitor is not None:
            raise ModelError("set_monitor: this TrainerMon already watches a model. Create another one.")
        self._micro_steps = 1 if grad_acc_steps is None else grad_acc_steps
        check_at_least("grad_acc_steps", self._micro_steps, 1)
        check_at_least("start_iteration", start_iteration, 0)
        if not self._config.records_something:
            self._say("the config enables nothing (wg_distribution, xy_distribution, ...): nothing is recorded")
        # Scripts written for msprobe cannot close a monitor: a new one replaces the previous one.
        for other in [other for other in _watching if other._shares(side, chunks)]:
            self._say("the model was watched by another TrainerMon, which is now closed")
            other.close()
        self._optimizer, self._chunks, self._side = optimizer, chunks, side
        self._groups = dp_group, tp_group
        self._start(start_iteration)
        _watching.add(self)

    def _shares(self, side: MsprobeSide, chunks: Sequence[Any]) -> bool:
        if self._is_closed:
            return False
        modules = {id(named.part) for named in side.modules(chunks)}
        return any(id(named.part) in modules for named in self._side.modules(self._chunks))

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """Name the optimizer for `monitor_gnorm_with_ad`; `set_monitor` takes it itself."""
        warnings.warn(
            "set_wrapped_optimizer is deprecated: pass the optimizer to set_monitor", DeprecationWarning, stacklevel=2
        )
        self._optimizer = optimizer

    def monitor_gnorm_with_ad(
        self,
        model: Any,
        grad_acc_steps: Any = 1,
        optimizer: Any = None,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None:
        """The old name of `set_monitor`."""
        warnings.warn("monitor_gnorm_with_ad is deprecated: use set_monitor", DeprecationWarning, stacklevel=2)
        if optimizer is None and not is_optimizer(grad_acc_steps):
            optimizer = self._optimizer
        self.set_monitor(model, grad_acc_steps, optimizer, dp_group, tp_group, start_iteration)

    def generate_wgrad_metrics(self) -> tuple[Statistics, Statistics]:
        """Return the statistics of this step's gradients so far, (reduced, unreduced)."""
        if not self._config.wg_distribution or self._monitor is None:
            return {}, {}
        so_far = {frame.quantity for frame in self._monitor.frames_so_far()}
        # Before backward() the parameters still have the gradients of the previous step.
        if self._reduced is not None and not so_far.isdisjoint(UNREDUCED):
            self._reduced.look()
        return self._statistics("grad_reduced"), self._statistics("grad_unreduced")

    def generate_xy_metrics(self) -> tuple[Statistics, Statistics]:
        """Return the statistics of this step's activations and their gradients so far."""
        return self._statistics("actv"), self._statistics("actv_grad")

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Enable or disable activations, from the next step."""
        warnings.warn("reload_xy is deprecated: use DYNAMIC_MONITOR", DeprecationWarning, stacklevel=2)
        all_xy = self._config.all_xy or (xy_distribution and not self._config.targets)
        self._change(dataclasses.replace(self._config, xy_distribution=xy_distribution, all_xy=all_xy))

    @property
    def ops(self) -> list[str]:
        """The recorded statistics; may be set during training, for the next step."""
        return list(self._config.ops)

    @ops.setter
    def ops(self, value: Sequence[str]) -> None:
        self._change(self._config.with_ops(value))

    def close(self) -> None:
        """Write everything and restore the model; called automatically when the process ends."""
        self._is_closed = True
        if self._monitor is not None:
            self._monitor.close()
        self._detach()

    # Starting and stopping

    @property
    def _writes(self) -> bool:
        is_chosen = not self._config.module_ranks or self._place.rank in self._config.module_ranks
        return is_chosen and self._config.format != "api"

    @property
    def _records(self) -> bool:
        is_chosen = not self._config.module_ranks or self._place.rank in self._config.module_ranks
        return self._is_on and is_chosen and self._config.collect_times > 0

    def _start(self, first_step: int, num_collected: int = 0) -> None:
        """Create the Monitor for the current config; it only counts steps while nothing is recorded."""
        model = self._chunks[0] if len(self._chunks) == 1 else self._chunks
        config = self._config
        self._schedule, self._num_collected = config.schedule(first_step, num_collected), num_collected
        self._reduced = None
        self._communication = CommunicationLog(config, self._world_size) if config.cc_enable and self._is_on else None
        names = Names(self._chunks, self._side, config.squash_name)
        choice = TargetChoice(names, config)
        if not self._records:
            idle = Config(quantities=(), sinks=(), rules=False, first_step=first_step, overhead=None)
            self._monitor = Monitor(model, self._optimizer, idle, choice=choice)
        else:
            self._monitor = self._recording(model, config, names, choice, first_step)
            if self._writes and config.records_something and not config.print_struct:
                self._say(f"recording from step {self._schedule.start} to {self._output.folder}")
        self._monitor.on_step_recorded(self._step_recorded)

    def _recording(
        self, model: Any, config: MonitorConfig, names: Names, choice: TargetChoice, first_step: int
    ) -> Monitor:
        sides = Sides(self._side)
        self._output.configure(config, Translation(config, names, choice, sides))
        watched = Config(
            quantities=() if config.print_struct else config.quantities(self._world_size),
            statistics=config.measured,
            every=self._schedule.every,
            start=self._schedule.start,
            count=self._schedule.count,
            eps=config.eps,
            replicas=True,
            sinks=(),
            rules=False,
            overhead=None,
            first_step=first_step,
        )
        probes = [Arrangement(self._micro_steps), *([] if config.print_struct else self._probes(config, names))]
        monitor = Monitor(
            model,
            self._optimizer,
            watched,
            choice=choice,
            probes=[IfOffered(probe) for probe in probes],
            sinks={self._output.name: self._output},
        )
        self._follow_modules(config, names, choice, sides)
        for router in (probe for probe in probes if isinstance(probe, RouterLogits)):
            named = named_by_config(names, "moe_router_logit_hook", config.l2_targets["moe_router_logit_hook"])
            called = {name: names.called[name] for name in named}
            self._undos.append(self._side.after_each_call(called, router.returned))
        return monitor

    def _probes(self, config: MonitorConfig, names: Names) -> list[Probe]:
        probes: list[Probe] = []
        if config.wg_distribution:
            self._reduced = ReducedGradients(partial(duplicates, names, self._side, *self._groups))
            probes.append(self._reduced)
        if config.param_distribution:
            probes += [TrainedWeightsBefore(names.tensors), TrainedWeights(names.tensors)]
        if config.xy_distribution and not config.forward_only:
            probes.append(GradientsThroughModules())
        if config.mg_direction:
            probes.append(Direction())
        if self._communication is not None:
            probes.append(self._communication.probe)
        if config.ur_distribution:
            probes.append(Updates(self._heat_maps(names)))
        if config.recording_l2_features:
            found = {hook: named_by_config(names, hook, wanted) for hook, wanted in config.l2_targets.items()}
            makers: dict[str, Callable[[list[str]], Probe]] = {
                "attention_hook": lambda modules: FirstHead(modules, config.sa_order),
                "linear_hook": KernelNorms,
                "moe_router_weight_hook": RouterWeights,
                "moe_router_logit_hook": lambda modules: RouterLogits(),
            }
            probes += [makers[hook](found[hook]) for hook in HOOKS if found.get(hook)]
        return probes

    def _heat_maps(self, names: Names) -> HeatMaps:
        rank = f"rank{self._place.rank}/" if self._world_size > 1 else ""
        heat_maps = HeatMaps(lambda name: f"{names.parameters[name]}/{rank}")
        self._output.on_flush(lambda events, is_last: heat_maps.write(events, time.time(), is_last))
        return heat_maps

    def _follow_modules(self, config: MonitorConfig, names: Names, choice: TargetChoice, sides: Sides) -> None:
        modules = names.called
        if config.print_struct:
            self._structure = Structure(self._side)
            self._undos.append(self._structure.follow({names.modules[name]: modules[name] for name in modules}))
            return
        if config.xy_distribution:
            chosen = set(choice.modules(modules))
            self._undos.append(sides.follow({name: module for name, module in modules.items() if name in chosen}))
        if config.stack_info:
            self._stacks = Stacks(self._side)
            self._undos.append(self._stacks.follow({names.modules[name]: modules[name] for name in modules}))

    def _detach(self) -> None:
        while self._undos:
            self._undos.pop()()

    def _restart(self, next_step: int, num_collected: int = 0) -> None:
        assert self._monitor is not None
        self._restart_is_due = False
        self._detach()
        self._monitor.close()
        self._start(next_step, num_collected)

    def _change(self, config: MonitorConfig) -> None:
        """Apply another config: now if no step is in progress, else at its end."""
        self._config = config
        monitor = self._monitor
        if monitor is None or not self._records or self._is_closed:
            return
        if monitor.is_between_steps:
            self._restart(monitor.next_step_number, self._num_collected)
        else:
            self._restart_is_due = True

    def _say(self, text: str) -> None:
        """Print a message, on one rank only."""
        if self._place.rank == min(self._config.module_ranks, default=0):
            sys.stderr.write(f"vario: {text}\n")

    # At the end of each step

    def _step_recorded(self, step: int) -> None:
        if self._structure is not None:
            raise StructureSaved(self._output.write_structure(self._structure.modules))
        if self._communication is not None:
            self._communication.step_recorded(self._say)
        try:
            self._after_step(step)
        except Exception as error:  # noqa: BLE001 - the failure policy: training goes on
            log.warning("step %d: the monitor could not apply its config: %s: %s", step, type(error).__name__, error)

    def _after_step(self, step: int) -> None:
        if self._stacks is not None and self._schedule.watches(step):
            stacks, self._stacks = self._stacks, None
            self._write_stacks(stacks)
        if self._records and self._schedule.watches(step):
            self._num_collected += 1
            if self._num_collected >= self._config.collect_times:
                self._finish(step)
        if self._is_dynamic:
            changed = self._file.read_if_changed()
            if changed is not None:
                self._take(changed, step)
        if self._restart_is_due and not self._is_closed:
            self._restart(step + 1, self._num_collected)

    def _finish(self, step: int) -> None:
        self._say(f"collect_times is reached at step {step}: nothing is recorded from now on")
        self._is_on = False
        if not self._is_dynamic:
            self.close()
            return
        if self._place.rank == min(self._config.module_ranks, default=0):
            self._file.switch_off()
        self._restart(step + 1)

    def _take(self, config: MonitorConfig, step: int) -> None:
        """Apply a changed file: start with the next step, or stop."""
        was_on = self._is_on
        self._is_on = config.dynamic_on
        if was_on and self._is_on and not config.collect_times:
            self._finish(step)
            return
        if not self._is_on and not was_on:
            return
        if self._is_on:
            # In dynamic mode collection starts with the next step, whatever start_step is.
            self._config = dataclasses.replace(config, start_step=step + 1)
            if self._writes:
                self._output.make_folder()
        if not self._is_on:
            self._say(f"dynamic_on is false: nothing is recorded from step {step + 1} on")
        self._restart(step + 1)

    def _write_stacks(self, stacks: Stacks) -> None:
        if self._config.format == "api":
            log.warning("stack_info is written as CSV only; with format 'api' nothing is written")
        else:
            self._output.write_stacks(stacks.modules)

    def _statistics(self, prefix: str) -> Statistics:
        if self._monitor is None or not self._records:
            return {}
        frames: Sequence[Frame] = self._monitor.frames_so_far()
        if not frames:
            self._monitor.wait()
            frames = self._output.last
        return self._output.statistics(frames, prefix, self._side.number)
