"""What happens inside the modules of a torch model: attention, routers of experts, dead units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch

from vario.backends.module_attributes import is_causal
from vario.backends.protocols.events import Undo
from vario.backends.protocols.observing import Later, Observer
from vario.backends.routers import check_routing
from vario.backends.torch.loop import hooks, operators
from vario.backends.torch.loop.sparse_hooks import SparseHooks
from vario.backends.torch.modules.attention import attention_rows
from vario.backends.torch.modules.attention_calls import FoundAttention
from vario.backends.torch.modules.channels import ChannelSizes, channel_sizes, chosen_modules
from vario.backends.torch.modules.module_calls import Call, ModuleCalls
from vario.backends.torch.modules.routers import Routers, given_logit_rows
from vario.backends.torch.modules.units import Units
from vario.backends.torch.reduce.async_copy import fetch_later
from vario.backends.torch.targets import Targets
from vario.core.errors import VarioError
from vario.core.selector import modules_matching


class InsideModel:
    """What probes ask about the modules of a model in training passes."""

    def __init__(self, targets: Targets, is_training: Callable[[], bool], calls: ModuleCalls) -> None:
        """`calls`: module calls, which the training loop follows."""
        self._targets = targets
        self._is_training = is_training
        self._called = calls
        self._returns = ModuleCalls(is_training, returned=True)
        self._attention: list[FoundAttention] = []
        self._units: list[Units] = []

    def attach(self, switch_off: Callable[[str, Exception], None]) -> Undo:
        """Follow what was asked for so far; what cannot be followed is switched off."""
        operators.define()
        undos = hooks.Undos()
        undos.add(self._returns.attach(self._targets.all_modules))
        followed: dict[str, Sequence[FoundAttention | Units]] = {"attention": self._attention, "unit": self._units}
        for quantity, parts in followed.items():
            for part in parts:
                try:
                    undos.add(part.attach(self._targets.modules, self._targets.roots))
                except VarioError:
                    raise  # a wrong option
                except Exception as error:  # noqa: BLE001 - the failure policy: modules of others may hold anything
                    switch_off(quantity, error)
        return undos

    @property
    def sparse_hooks(self) -> list[SparseHooks]:
        """Hooks that are needed only in recorded steps."""
        return [units.hooks for units in self._units]

    def on_attention(self, observer: Observer, by_head: bool = False) -> None:
        """Pass the numbers of all attention inside the chosen modules to this observer."""
        self._attention.append(FoundAttention(observer, self._is_training, by_head))

    def modules_matching(self, patterns: Sequence[str]) -> list[str]:
        """Return the names of all modules that match, targets or not; raises if a pattern matches none."""
        return modules_matching(patterns, list(self._targets.all_modules))

    def on_modules_called(self, names: Sequence[str], call: Call) -> None:
        """Call `call` with (name, positional inputs) when one of these modules is called in a training pass."""
        self._called.follow(names, call)

    def attention_rows(
        self,
        name: str,
        query: torch.Tensor,
        key: torch.Tensor,
        order: str,
        first_only: bool = False,
        by_head: bool = False,
    ) -> dict[str, torch.Tensor]:
        """Return entropy, largest probability and largest logit of each row of a module's attention."""
        causal = is_causal(self._targets.all_modules[name])
        return attention_rows(query, key, order, causal=causal, first_only=first_only, by_head=by_head)

    def on_units(self, observer: Observer) -> Callable[[], tuple[list[str], list[torch.Tensor]]]:
        """Track which units are active while this observer records; the result returns the inactive share by module."""
        units = Units(observer, self._is_training)
        self._units.append(units)
        return units.dead

    def on_modules_returned(self, names: Sequence[str], call: Call) -> None:
        """Call `call` with (name, items) when one of these modules has returned them in a training pass."""
        self._returns.follow(names, call)

    def chosen_modules(self) -> list[str]:
        """Return the chosen modules whose outputs have channels."""
        return chosen_modules(self._targets.modules)

    def channel_sizes(self, target: str, tensor: Any, kind: str) -> ChannelSizes | None:
        """Start to measure the `rows` or `columns` of a matrix, or the `features` of an activation; None: no such."""
        return channel_sizes(target, tensor, kind)

    def routers(self) -> list[str]:
        """Return the chosen modules that are routers of experts."""
        return self._routers.names(self._targets.modules)

    def expert_rows(
        self, name: str, returned: Sequence[Any], read: Callable[..., Any] | None = None
    ) -> dict[str, torch.Tensor] | None:
        """Return `load`, the tokens per expert over the mean, and `dropped` if a router's output says so."""
        if read is None:
            return self._routers.rows(name, returned)
        return self._routers.rows_of(name, check_routing(read(*returned)))

    def logit_source(self, name: str) -> tuple[str, bool] | None:
        """Return the module that shows a router's logits, and whether it returns them or is called with its input."""
        return self._routers.logit_source(name)

    def logit_rows(
        self, name: str, values: Sequence[Any], read: Callable[..., Any] | None = None
    ) -> dict[str, torch.Tensor] | None:
        """Return `entropy` and `logit` of a router from what its source returned or was called with."""
        if read is None:
            return self._routers.logit_rows(name, values)
        return given_logit_rows(check_routing(read(*values)))

    def fetch_later(self, tensor: torch.Tensor) -> Later:
        """Start copying a few numbers to the host; the result waits for them."""
        return fetch_later(tensor)

    @cached_property
    def _routers(self) -> Routers:
        return Routers(self._targets.all_modules)
