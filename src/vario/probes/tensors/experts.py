"""How evenly routers distribute tokens over experts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.capabilities import RouterLogits, Routers
from vario.backends.protocols.observing import Observer
from vario.core.errors import ConfigError
from vario.probes import Needs, Recorder

log = logging.getLogger("vario")


class Experts:
    """`load`: for each expert of a router, the tokens sent to it divided by the mean of its experts.

    `dropped`: the share of choices that reach no expert, where a router's output says so. With `each` also
    `load.<expert>`, one number for each expert.
    """

    quantity: ClassVar[str] = "expert"
    every: ClassVar[int] = 1
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (Routers,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the outputs of the routers that `experts` names; by default of all routers found."""
        named, modules = recorder.config.experts, needed(backend, Routers)
        routers = chosen_routers(named, modules)
        if not routers:
            return
        observer = recorder.observer(self.quantity)
        has_parts = self.quantity in recorder.config.each
        silent: set[str] = set()

        def returned(name: str, items: tuple[Any, ...]) -> None:
            if not observer.watching or name in silent:
                return
            rows = modules.expert_rows(name, items, routers[name])
            if rows is not None:
                for what, numbers in rows.items():
                    observer.observe(f"{name}:{what}", numbers)
                for expert in range(len(rows["load"]) if has_parts else 0):
                    observer.observe(f"{name}:load.{expert}", rows["load"][expert : expert + 1])
            elif named:
                raise ValueError(f"'{name}' returns neither logits of experts nor chosen experts")
            else:
                silent.add(name)
                log.warning("'%s' looks like a router, but its output does not say which experts it chose", name)

        modules.on_modules_returned([*routers], recorder.guarded(self.quantity, returned))


class RouterSoftmax:
    """`entropy`: of each token's softmax over a router's logits, in nats; `logit`: the logits. Of 1,024 tokens."""

    quantity: ClassVar[str] = "router"
    every: ClassVar[int] = 10
    sees_light_steps: ClassVar[bool] = True
    needs: ClassVar[Needs] = (RouterLogits,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the logits of the routers that `experts` names; by default of all routers found."""
        modules = needed(backend, RouterLogits)
        routers = chosen_routers(recorder.config.experts, modules)
        observer = recorder.observer(self.quantity) if routers else None
        for name, read in routers.items():
            source = (name, True) if read is not None else modules.logit_source(name)
            if source is None or observer is None:
                log.info("router '%s': no logits are recorded, because no layer of it is known to compute them", name)
                continue
            subscribe = modules.on_modules_returned if source[1] else modules.on_modules_called
            subscribe(
                [source[0]], recorder.guarded(self.quantity, partial(_logits_came, modules, observer, name, read))
            )


def _logits_came(
    modules: RouterLogits,
    observer: Observer,
    name: str,
    read: Callable[..., Any] | None,
    source: str,
    values: tuple[Any, ...],
) -> None:
    if observer.watching:
        for what, numbers in (modules.logit_rows(name, values, read) or {}).items():
            observer.observe(f"{name}:{what}", numbers)


def chosen_routers(
    named: Sequence[str] | Mapping[str, Callable[..., Any]], modules: Routers | RouterLogits
) -> dict[str, Callable[..., Any] | None]:
    """Return the routers that were named, or else those found, each with the user's function that reads its output."""
    readers = named if isinstance(named, Mapping) else dict.fromkeys(named)
    try:
        chosen = {name: read for pattern, read in readers.items() for name in modules.modules_matching([pattern])}
        return chosen if named else dict.fromkeys(modules.routers())
    except ConfigError as error:
        raise ConfigError(f"experts: {error}") from None
