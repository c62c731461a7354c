"""Config files: the content of a TOML, YAML or JSON file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vario.core.errors import ConfigError, MissingExtra


def read_table(path: Path) -> Mapping[str, Any]:
    """Read the content of a .toml, .yaml, .yml or .json file; raises ConfigError if it is no table of options."""
    try:
        text = path.read_text(encoding="utf8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error}") from error
    try:
        options = _parse(path, text)
    except RecursionError:
        raise ConfigError(f"{path}: nested too deeply") from None
    if not isinstance(options, Mapping):
        raise ConfigError(f"{path}: expected a table of options, got {type(options).__name__}")
    return options


def _parse(path: Path, text: str) -> Any:
    kind = path.suffix.lower()
    try:
        if kind == ".json":
            return json.loads(text)
        if kind == ".toml":
            if sys.version_info >= (3, 11):
                import tomllib  # novermin - only if it exists
            else:
                import tomli as tomllib
            return tomllib.loads(text)
        if kind in (".yaml", ".yml"):
            try:
                import yaml
            except ImportError:
                raise MissingExtra(f"{path}: reading YAML", "yaml") from None
            return yaml.safe_load(text) or {}
    except ValueError as error:
        raise ConfigError(f"{path}: not valid {kind[1:].upper()}: {error}") from error
    except Exception as error:
        if type(error).__module__.startswith("yaml"):
            raise ConfigError(f"{path}: not valid YAML: {error}") from error
        raise
    raise ConfigError(f"{path}: unknown kind of config file '{kind}'. Use .toml, .yaml or .json.")
