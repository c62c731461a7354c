"""How evenly routers distribute tokens over experts."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import Routers
from vario.core.errors import ConfigError
from vario.probes import Needs, Recorder

log = logging.getLogger("vario")


class Experts:
    """`load`: for each expert of a router, the tokens sent to it divided by the mean of its experts."""

    quantity: ClassVar[str] = "expert"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (Routers,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the outputs of the routers that `experts` names; by default of all routers found."""
        named, modules = recorder.config.experts, needed(backend, Routers)
        try:
            routers = modules.modules_matching(named) if named else modules.routers()
        except ConfigError as error:
            raise ConfigError(f"experts: {error}") from None
        if not routers:
            return
        observer = recorder.observer(self.quantity)
        silent: set[str] = set()

        def returned(name: str, items: tuple[Any, ...]) -> None:
            if not observer.watching or name in silent:
                return
            load = modules.expert_load(name, items)
            if load is not None:
                observer.observe(f"{name}:load", load)
            elif named:
                raise ValueError(f"'{name}' returns neither logits of experts nor chosen experts")
            else:
                silent.add(name)
                log.warning("'%s' looks like a router, but its output does not say which experts it chose", name)

        modules.on_modules_returned(routers, recorder.guarded(self.quantity, returned))
