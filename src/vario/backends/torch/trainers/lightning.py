"""Lightning's Trainer and Fabric, under both names of the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vario.backends.protocols.events import Undo
from vario.backends.torch.loop import hooks
from vario.backends.torch.trainers.listener import Listener

_CONNECTOR = "trainer.connectors.logger_connector.logger_connector"
_FABRICS = ("lightning.fabric.fabric", "lightning_fabric.fabric")
MODULES = (f"lightning.pytorch.{_CONNECTOR}", f"pytorch_lightning.{_CONNECTOR}", *_FABRICS)


def follow(module: Any, listener: Listener) -> Undo:
    """Take what goes to its loggers, whether there are any or not."""
    if module.__name__ in _FABRICS:
        return hooks.around(module.Fabric, "log_dict", listener.guarded(_of_fabric(listener)), with_keywords=True)

    def logged(connector: Any, *given: Any, **named: Any) -> None:
        trainer = connector.trainer
        has_ours = any(type(callback).__module__.startswith("vario.") for callback in trainer.callbacks)
        if not has_ours and not trainer.sanity_checking and listener.is_ours([trainer.lightning_module]):
            listener.report(_numbers(given, named))

    return hooks.around(module._LoggerConnector, "log_metrics", listener.guarded(logged), with_keywords=True)


def _of_fabric(listener: Listener) -> Any:
    def logged(fabric: Any, *given: Any, **named: Any) -> None:
        listener.report(_numbers(given, named))

    return logged


def _numbers(given: tuple[Any, ...], named: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = given[0] if given else named["metrics"]
    return found
