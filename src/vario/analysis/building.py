"""Builds models to analyse, from a transformers config or a function, without allocating memory."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError
from vario.core.package import FOLDER
from vario.core.text import reason, suggestion

MEANINGS = {
    "batch": ("batch", "batch_size"),
    "seq": ("seq", "seq_len", "sequence_length", "seq_length"),
}
"""Arguments of a building function that are passed by name."""


@dataclass(frozen=True)
class Built:
    """A model without memory, and what else its builder returned."""

    model: Any
    batch: Any = None
    loss: Callable[[Any, Any], Any] | None = None
    notes: tuple[str, ...] = ()
    """How the model differs from its config."""


def build_model(source: str, batch_size: int, sequence_length: int, dtype: str = "float32") -> Built:
    """Build a model from `config.json`, its folder, or `module:function`."""
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file() and path.suffix != ".py":
        return _from_config(path, dtype)
    module, colon, function = source.rpartition(":")
    if not colon or path.suffix == ".json":
        raise ConfigError(
            f"model: no config '{source}'. Give a config.json of transformers, its folder, or "
            "module:function for a function that builds a model."
        )
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"model: '{module}' is not a module name. Write it as in an import statement: "
            f"`{Path(module).stem or 'module'}:{function or 'function'}`."
        )
    return _from_function(module, function, {"batch": batch_size, "seq": sequence_length}, dtype)


def _from_config(path: Path, dtype: str) -> Built:
    try:
        read = json.loads(path.read_text(encoding="utf8"))
    except (ValueError, OSError) as error:
        raise ConfigError(f"model: {path} cannot be read as JSON: {error}") from None
    if not isinstance(read, dict) or "model_type" not in read:
        raise ConfigError(f"model: {path} is not a transformers config: it has no 'model_type'.")
    try:
        import transformers
    except ImportError:
        raise ConfigError("model: a config.json needs transformers: pip install transformers") from None
    kind = read.pop("model_type")
    if kind not in transformers.CONFIG_MAPPING:
        known = list(transformers.CONFIG_MAPPING)
        raise ConfigError(
            f"model: transformers {transformers.__version__} has no model_type '{kind}'. {suggestion(kind, known)}"
        )
    notes = []
    if read.pop("quantization_config", None):
        notes.append("The config is for a quantized model; this prediction is without quantization.")
    for key in ("attn_implementation", "_attn_implementation"):
        if str(read.get(key)).startswith("flash"):
            del read[key]  # torch's own attention uses the same kernels and needs no extra package
    architectures = read.get("architectures") or []
    named = architectures if isinstance(architectures, str) else next(iter(architectures), None)
    make = transformers.AutoModelForCausalLM.from_config if named is None else _architecture(transformers, named)
    try:
        config = transformers.AutoConfig.for_model(kind, **read)
        config.use_cache = False  # as in training
        with _without_memory(dtype):
            return Built(make(config), notes=tuple(notes))
    except Exception as error:
        raise ConfigError(f"model: transformers cannot build what {path} describes: {reason(error)}.") from error


def _architecture(transformers: Any, name: str) -> Any:
    """The model class in transformers; a different one would take different memory."""
    found = getattr(transformers, name, None)
    if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    known = [word for word in dir(transformers) if "For" in word or word.endswith("Model")]
    raise ConfigError(
        f"model: transformers {transformers.__version__} has no architecture '{name}'. {suggestion(name, known)} A "
        "model with custom code is given as module:function."
    )


def _from_function(module: str, function: str, values: dict[str, int], dtype: str) -> Built:
    sys.path.insert(0, os.getcwd())
    try:
        home = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"model: {error}. `{module}:{function}` is searched for in the current folder.") from None
    except Exception as error:
        raise ConfigError(f"model: importing '{module}' raised {reason(error)}{_where(error)}.") from error
    finally:
        sys.path.pop(0)
    build = getattr(home, function, None)
    if not callable(build):
        known = [name for name, value in vars(home).items() if callable(value)]
        raise ConfigError(f"model: '{module}' has no function '{function}'. {suggestion(function, known)}")
    try:
        taken = inspect.signature(build).parameters
        given = {word: values[key] for key, words in MEANINGS.items() for word in words if word in taken}
        with _without_memory(dtype):
            made = build(**given)
    except Exception as error:
        raise ConfigError(
            f"model: {function}() raised {reason(error)}{_where(error)}. It is called under "
            "torch.device('meta'), without memory, and may take batch and seq."
        ) from error
    return _checked(Built(*made) if isinstance(made, tuple) and 1 <= len(made) <= 3 else Built(made), function)


def _checked(built: Built, function: str) -> Built:
    import torch

    if not isinstance(built.model, torch.nn.Module):
        raise ConfigError(
            f"model: {function}() returned a {type(built.model).__name__}. Expected a torch.nn.Module, or (model, "
            "batch), or (model, batch, loss)."
        )
    if built.loss is not None and not callable(built.loss):
        raise ConfigError(
            f"model: the loss that {function}() returned is a {type(built.loss).__name__}. Expected a function of "
            "outputs and batch."
        )
    return built


def _where(error: BaseException) -> str:
    """The line of the user's file that failed."""
    others = (os.path.dirname(os.__file__), FOLDER, "<")
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f" in {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""


@contextmanager
def _without_memory(dtype: str) -> Iterator[None]:
    import torch

    from vario.backends.torch.releases import load_compilers

    load_compilers()
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(before)
