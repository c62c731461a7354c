"""How evenly routers spread tokens over experts."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.core.errors import ConfigError
from vario.probes import Recorder

log = logging.getLogger("vario")


class Experts:
    """`load`: for each expert of a router, the tokens sent to it over the mean of all its experts."""

    quantity: ClassVar[str] = "expert"
    every: ClassVar[int] = 1

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to what the routers return that `experts` names, or else all that are found."""
        named = recorder.config.experts
        try:
            routers = watched.modules_matching(named) if named else watched.inside.routers()
        except ConfigError as error:
            raise ConfigError(f"experts: {error}") from None
        observer = recorder.observer(self.quantity)
        silent: set[str] = set()

        def returned(name: str, items: tuple[Any, ...]) -> None:
            if not observer.watching or name in silent:
                return
            load = watched.inside.expert_load(name, items)
            if load is not None:
                observer.observe(f"{name}:load", load)
            elif named:
                raise ValueError(f"'{name}' returns neither logits of experts nor a choice of them")
            else:
                silent.add(name)
                log.warning("'%s' looks like a router, but what it returns does not say which experts it chose", name)

        watched.inside.on_modules_returned(routers, recorder.guarded(self.quantity, returned))
