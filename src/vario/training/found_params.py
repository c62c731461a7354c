"""Finds hyper-parameters that a script has anyway: in argparse's namespace, a config, trainers' arguments, optimizers.

Nothing is imported for it and nothing is patched: objects of known types are looked for in the variables of the
functions that are being called when watching starts, the innermost first.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from inspect import CO_NEWLOCALS
from types import FrameType
from typing import Any

from vario.core.masking import SECRET
from vario.core.package import is_own_file
from vario.core.params import Params, flat, read_assignments
from vario.core.run_header import RunParams
from vario.core.text import reason

log = logging.getLogger("vario")

VARIABLE = "VARIO_PARAMS"
"""The environment variable with further ones: `lr=0.1,seed=3`."""
MOST_FRAMES = 60
MOST_OPTIMIZERS = 4
NO_SETTINGS = ("_dir", "_path", "local_rank", "run_name")
"""Ends of names in a trainer's arguments that say where things are, not how to train."""
OF_LAUNCHERS = re.compile(r"[/\\](_pytest|pluggy|runpy\.py|torch[/\\]distributed|accelerate[/\\]commands)")
"""Files whose own arguments are not those of the training."""
SWITCHES = ("foreach", "fused", "capturable", "differentiable", "params", "initial_lr")
"""Options of an optimizer that do not change what it does."""
ALWAYS = (
    *("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"),
    *("weight_decay", "warmup_steps", "warmup_ratio", "lr_scheduler_type", "optim", "max_grad_norm", "seed"),
    *("bf16", "fp16"),
)
"""Arguments of transformers' Trainer that are kept even if they are the default."""


class FoundParams(RunParams):
    """What was given, and what was found; never raises."""

    def __init__(self, given: Mapping[str, Any], model: Any, optimizer: Any) -> None:
        super().__init__()
        self.add("given", dict(given))
        self._try(VARIABLE, lambda: read_assignments(os.environ.get(VARIABLE) or "") if VARIABLE in os.environ else {})
        self._look_around()
        self._try("lightning", lambda: _hparams(model))
        given_optimizers = optimizer.values() if isinstance(optimizer, Mapping) else optimizer
        if not isinstance(given_optimizers, Iterable) or hasattr(optimizer, "param_groups"):
            given_optimizers = [optimizer]
        for number, each in enumerate(list(given_optimizers)[:MOST_OPTIMIZERS]):
            self.optimizer_came(each, number)

    def optimizer_came(self, optimizer: Any, number: int) -> None:
        """Note an optimizer's settings as `optimizer.lr`, of further ones as `optimizer1.lr`."""
        if optimizer is not None and number < MOST_OPTIMIZERS:
            name = f"optimizer{number or ''}"
            if name not in self.values:
                self._try("optimizer", lambda: _optimizer_settings(optimizer, name))

    def _look_around(self) -> None:
        around: dict[str, Any] = {}

        def look() -> Params:
            around.update(_objects_around())
            return {}

        self._try("variables", look)
        for source, found in around.items():
            self._try(source, partial(FINDERS[source][1], found))

    def _try(self, source: str, find: Callable[[], Params]) -> None:
        try:
            found = find()
        except Exception as error:  # noqa: BLE001 - the failure policy: training does not depend on it
            log.warning("hyper-parameters: %s could not be read: %s", source, reason(error))
            return
        self.add(source, {name: value for name, value in found.items() if not SECRET.search(name)})


def _is_namespace(kind: type) -> bool:
    module = sys.modules.get("argparse")
    return module is not None and issubclass(kind, module.Namespace)


def _is_config(kind: type) -> bool:
    return kind.__name__ == "DictConfig" and kind.__module__.startswith("omegaconf.")


def _is_arguments(kind: type) -> bool:
    return any(
        base.__name__ == "TrainingArguments" and base.__module__.startswith("transformers.") for base in kind.__mro__
    )


def _of_namespace(found: Any) -> Params:
    return flat({name: _unwrapped(value) for name, value in vars(found).items() if not callable(value)})


def _unwrapped(value: Any) -> Any:
    return vars(value) if _is_namespace(type(value)) else value


def _of_config(found: Any) -> Params:
    to_container = sys.modules["omegaconf"].OmegaConf.to_container
    try:
        container = to_container(found, resolve=True)
    except Exception:  # noqa: BLE001 - a reference to something that is not there
        container = to_container(found, resolve=False)
    return flat(container) if isinstance(container, Mapping) else {}


def _of_arguments(found: Any) -> Params:
    """Those that differ from the default, and the usual ones."""
    fields = getattr(type(found), "__dataclass_fields__", {})
    values = {name: getattr(found, name) for name in fields if hasattr(found, name) and not name.endswith(NO_SETTINGS)}
    return flat(
        {name: value for name, value in values.items() if name in ALWAYS or not _is_default(fields[name], value)}
    )


def _is_default(field: Any, value: Any) -> bool:
    return bool(value is None or field.default == value or getattr(field.default, "value", None) == value)


FINDERS: dict[str, tuple[Callable[[type], bool], Callable[[Any], Params]]] = {
    "config": (_is_config, _of_config),
    "argparse": (_is_namespace, _of_namespace),
    "TrainingArguments": (_is_arguments, _of_arguments),
}
"""By source, what takes precedence first: which types have them, and what is read from one."""


def _objects_around() -> dict[str, Any]:
    """The nearest object of each kind: in the variables of the calling functions, or of their modules."""
    found: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    seen: set[int] = set()
    for _ in range(MOST_FRAMES):
        if frame is None or len(found) == len(FINDERS):
            break
        file = frame.f_code.co_filename
        if not is_own_file(file) and not OF_LAUNCHERS.search(file):
            for value in _variables(frame, seen):
                kind = type(value)
                for source, (is_one, _) in FINDERS.items():
                    if source not in found and is_one(kind):
                        found[source] = value
        frame = frame.f_back
    return {source: found[source] for source in FINDERS if source in found}


def _variables(frame: FrameType, seen: set[int]) -> Iterator[Any]:
    if frame.f_code.co_flags & CO_NEWLOCALS:
        yield from _local_values(frame)
    if id(frame.f_globals) not in seen:
        seen.add(id(frame.f_globals))
        yield from list(frame.f_globals.values())


def _local_values(frame: FrameType) -> list[Any]:
    """The variables of a function. Before Python 3.13 reading them leaves a copy in the frame, which would keep tensors
    alive as long as the function runs: it is emptied, unless the function has called `locals()` itself."""
    copy = frame.f_locals
    values = [value for value in list(copy.values()) if value is not copy]
    # The frame's reference, the one here, and that of the call.
    if sys.version_info < (3, 13) and sys.getrefcount(copy) <= 3:
        copy.clear()
    return values


def _hparams(model: Any) -> Params:
    """What a LightningModule saved with `save_hyperparameters`."""
    is_lightning = any(
        base.__name__ == "LightningModule" and base.__module__.startswith(("lightning", "pytorch_lightning"))
        for base in type(model).__mro__
    )
    return flat(dict(model.hparams)) if is_lightning else {}


def _optimizer_settings(optimizer: Any, name: str) -> Params:
    inner = optimizer
    while type(inner).__name__.startswith("Accelerated") and hasattr(inner, "optimizer"):
        inner = inner.optimizer
    groups = getattr(inner, "param_groups", None) or [{}]
    first: Mapping[str, Any] = groups[0]
    options = {**(getattr(inner, "defaults", None) or {}), **first}
    if "initial_lr" in first:
        options["lr"] = first["initial_lr"]  # a schedule may have begun
    kept = {key: value for key, value in options.items() if key not in SWITCHES and value is not None}
    return {name: type(inner).__name__, **{f"{name}.{key}": value for key, value in flat(kept).items()}}
