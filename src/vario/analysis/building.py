"""Models to be analysed, from a configuration file of transformers or from a function; built without memory."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.errors import ConfigError
from vario.text import suggestion

MEANINGS = {
    "batch": ("batch", "batch_size"),
    "seq": ("seq", "seq_len", "sequence_length", "seq_length"),
}
"""Arguments of a building function that are filled in, by their usual names."""


@dataclass(frozen=True)
class Built:
    """A model without memory, and what else its builder gave."""

    model: Any
    batch: Any = None
    loss: Callable[[Any, Any], Any] | None = None


def build_model(source: str, batch_size: int, sequence_length: int, dtype: str = "float32") -> Built:
    """A model from `config.json`, from the folder it is in, or from `module:function`."""
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file() and path.suffix != ".py":
        return Built(_from_config(path, dtype))
    module, colon, function = source.rpartition(":")
    if not colon or path.suffix == ".json":
        raise ConfigError(
            f"model: there is no configuration '{source}'. Give a config.json of transformers, the folder it is in, or "
            "module:function for a function that builds a model."
        )
    return _from_function(module, function, {"batch": batch_size, "seq": sequence_length}, dtype)


def _from_config(path: Path, dtype: str) -> Any:
    try:
        read = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, OSError) as error:
        raise ConfigError(f"model: {path} cannot be read as JSON: {error}") from None
    if not isinstance(read, dict) or "model_type" not in read:
        raise ConfigError(f"model: {path} is no configuration of transformers: it has no 'model_type'.")
    try:
        import transformers
    except ImportError:
        raise ConfigError("model: a config.json needs transformers: pip install transformers") from None
    kind = read.pop("model_type")
    try:
        config = transformers.AutoConfig.for_model(kind, **read)
    except ValueError:
        known = list(transformers.CONFIG_MAPPING)
        raise ConfigError(
            f"model: transformers {transformers.__version__} knows no model_type '{kind}'. {suggestion(kind, known)}"
        ) from None
    config.use_cache = False  # as in training
    named = next(iter(read.get("architectures") or ()), None)
    with _without_memory(dtype):
        if named is not None and hasattr(transformers, named):
            return getattr(transformers, named)(config)
        return transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]


def _from_function(module: str, function: str, values: dict[str, int], dtype: str) -> Built:
    sys.path.insert(0, os.getcwd())
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"model: {error}. `{module}:{function}` is looked for from the folder you are in.") from None
    finally:
        sys.path.pop(0)
    build = getattr(home, function, None)
    if not callable(build):
        known = [name for name, value in vars(home).items() if callable(value)]
        raise ConfigError(f"model: '{module}' has no function '{function}'. {suggestion(function, known)}")
    taken = inspect.signature(build).parameters
    given = {word: values[key] for key, words in MEANINGS.items() for word in words if word in taken}
    with _without_memory(dtype):
        made = build(**given)
    return Built(*made) if isinstance(made, tuple) else Built(made)


@contextmanager
def _without_memory(dtype: str) -> Iterator[None]:
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)
