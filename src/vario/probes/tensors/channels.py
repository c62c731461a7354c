"""The size of single channels of weights and activations."""

from __future__ import annotations

from typing import Any, ClassVar

from vario.backends.protocols import capabilities as offered
from vario.backends.protocols.backend import Backend, needed
from vario.backends.protocols.observing import Tensor
from vario.core.elements.channels import QUANTITY
from vario.probes import Needs, Recorder


class Channels:
    """The largest magnitude of each row and column of weight matrices and of each feature of modules' outputs.

    A row is the Summary over the channels of a tensor; the eight largest channels are kept by number.
    """

    quantity: ClassVar[str] = QUANTITY
    every: ClassVar[int] = 100
    needs: ClassVar[Needs] = (offered.Channels,)

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Subscribe to the outputs of modules and to the end of updates."""
        observer, channels = recorder.observer(self.quantity), needed(backend, offered.Channels)

        def take(name: str, kind: str, tensor: Tensor) -> None:
            target = f"{name}:{kind}"
            found = channels.channel_sizes(target, tensor, kind)
            if found is not None:
                observer.add_later(found.rows, 1, found.detail)

        def update_ended(optimizer: Any) -> None:
            if observer.watching:
                for name, tensor in zip(*backend.weights(optimizer), strict=True):
                    for kind in ("rows", "columns"):
                        take(name, kind, tensor)

        def returned(name: str, items: tuple[Any, ...]) -> None:
            if observer.watching and items:
                take(name, "features", items[0])

        backend.on_update_ended(recorder.guarded(self.quantity, update_ended))
        channels.on_modules_returned(channels.chosen_modules(), recorder.guarded(self.quantity, returned))
