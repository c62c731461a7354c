"""What happens inside the modules of a torch model: attention, routers of experts, units that fall silent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from vario.backends.base import Observer, Undo
from vario.backends.torch.loop import hooks, operators
from vario.backends.torch.modules.attention_calls import FoundAttention
from vario.backends.torch.modules.module_calls import Call, ModuleCalls
from vario.backends.torch.modules.routers import Routers
from vario.backends.torch.modules.units import Units
from vario.backends.torch.targets import Targets


class InsideModel:
    """What probes ask of the modules of a model in passes that train."""

    def __init__(self, targets: Targets, is_training: Callable[[], bool]) -> None:
        self._targets = targets
        self._is_training = is_training
        self._returns = ModuleCalls(is_training, returned=True)
        self._attention: list[FoundAttention] = []
        self._units: list[Units] = []

    def attach(self) -> Undo:
        """Follow what was asked for by now."""
        operators.define()
        undos = hooks.Undos()
        undos.add(self._returns.attach(self._targets.all_modules))
        for attention in self._attention:
            undos.add(attention.attach(self._targets.modules, self._targets.roots))
        for units in self._units:
            undos.add(units.attach(self._targets.modules))
        return undos

    def on_attention(self, observer: Observer) -> None:
        """Hand the numbers of all attention inside the chosen modules to this observer."""
        self._attention.append(FoundAttention(observer, self._is_training))

    def on_units(self, observer: Observer) -> Callable[[], tuple[list[str], list[torch.Tensor]]]:
        """Follow which units speak while this observer watches; the result is the share that did not, by module."""
        units = Units(observer, self._is_training)
        self._units.append(units)
        return units.dead

    def on_modules_returned(self, names: Sequence[str], call: Call) -> None:
        """Call with (name, items) when one of these modules has returned them in a pass that trains."""
        self._returns.follow(names, call)

    def routers(self) -> list[str]:
        """The chosen modules that are routers of experts."""
        return self._routers.names(self._targets.modules)

    def expert_load(self, name: str, returned: Sequence[Any]) -> torch.Tensor | None:
        """Per expert, tokens sent to it over the mean of all, from what a router returned; None: it does not say."""
        return self._routers.load(name, returned)

    @cached_property
    def _routers(self) -> Routers:
        return Routers(self._targets.all_modules)
