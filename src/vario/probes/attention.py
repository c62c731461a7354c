"""How sharply attention looks."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.base import Watched
from vario.core.errors import ConfigError
from vario.probes import Recorder


class Attention:
    """Rows of attention's softmax: `entropy`, `softmax_max`, `max_logit` over queries and `head_entropy` over heads."""

    quantity: ClassVar[str] = "attention"
    every: ClassVar[int] = 50

    def attach(self, watched: Watched, recorder: Recorder) -> None:
        """Subscribe to calls of the modules that `attention` names, or else to all attention that is found."""
        config = recorder.config
        if not config.attention:
            watched.inside.on_attention(recorder.observer(self.quantity))
            return
        try:
            names = watched.modules_matching(config.attention)
        except ConfigError as error:
            raise ConfigError(f"attention: {error}") from None
        observer = recorder.observer(self.quantity)

        def called(name: str, args: tuple[Any, ...]) -> None:
            if not observer.watching:
                return
            try:
                if len(args) < 2:
                    raise ValueError(f"expected queries and keys, got {len(args)} positional inputs")
                found = watched.attention_rows(name, args[0], args[1], config.attention_order)
            except ValueError as error:
                raise ValueError(f"attention of '{name}': {error}") from error
            for what, rows in found.items():
                observer.observe(f"{name}:{what}", rows)

        watched.on_modules_called(names, recorder.guarded(self.quantity, called))
