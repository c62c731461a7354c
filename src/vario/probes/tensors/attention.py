"""How concentrated attention is."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.core.errors import ConfigError
from vario.probes import Needs, Recorder


class Attention:
    """Attention's softmax rows: `entropy`, `softmax_max`, `max_logit` per query and `head_entropy` per head.

    With `each` also `head_entropy.<head>` and `max_logit.<head>`, one number for each head.
    """

    quantity: ClassVar[str] = "attention"
    every: ClassVar[int] = 50
    needs: ClassVar[Needs] = (offered.Attention,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to calls of the modules that `attention` names; by default to all attention found."""
        config, attention = recorder.config, needed(backend, offered.Attention)
        by_head = self.quantity in config.each
        if not config.attention:
            attention.on_attention(recorder.observer(self.quantity), by_head)
            return
        try:
            names = attention.modules_matching(config.attention)
        except ConfigError as error:
            raise ConfigError(f"attention: {error}") from None
        observer = recorder.observer(self.quantity)

        def called(name: str, args: tuple[Any, ...]) -> None:
            if not observer.watching:
                return
            try:
                if len(args) < 2:
                    raise ValueError(f"expected queries and keys, got {len(args)} positional inputs")
                found = attention.attention_rows(name, args[0], args[1], config.attention_order, by_head=by_head)
            except ValueError as error:
                raise ValueError(f"attention of '{name}': {error}") from error
            for what, rows in found.items():
                observer.observe(f"{name}:{what}", rows)

        attention.on_modules_called(names, recorder.guarded(self.quantity, called))
