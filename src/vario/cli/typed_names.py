"""Errors about what was typed: the flags of `convert` and `import` instead of the arguments of msprobe's functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vario.core.errors import ConfigError

TYPED = {
    "monitor_path": "DIR",
    "time_start": "--time-start",
    "time_end": "--time-end",
    "process_num": "--processes",
    "data_type_list": "--types",
    "output_dirpath": "--output",
    "step_partition": "--step-partition",
}


@contextmanager
def named_as_typed() -> Iterator[None]:
    """A ConfigError that begins with the name of an argument begins with the flag's instead."""
    try:
        yield
    except ConfigError as error:
        argument, colon, rest = str(error).partition(":")
        raise ConfigError(f"{TYPED.get(argument, argument)}{colon}{rest}") from error
