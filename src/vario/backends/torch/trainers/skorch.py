"""skorch: the row that each epoch adds to a net's history."""

from __future__ import annotations

from typing import Any

from vario.backends.protocols.events import Undo
from vario.backends.torch.loop import hooks
from vario.backends.torch.trainers.listener import Listener

MODULES = ("skorch.net",)
_COUNTS = ("batches", "train_batch_count", "valid_batch_count")


def follow(module: Any, listener: Listener) -> Undo:
    """Take the row when all callbacks have added their values."""

    def notified(net: Any, event: str, *_: Any, **__: Any) -> None:
        if event == "on_epoch_end" and listener.is_ours([getattr(net, "module_", None)]):
            row = net.history[-1]
            listener.report({name: value for name, value in row.items() if name not in _COUNTS})

    return hooks.around(module.NeuralNet, "notify", listener.guarded(notified), with_keywords=True)
