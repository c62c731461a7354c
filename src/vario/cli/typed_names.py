"""Error messages that name the flags of `convert` and `import` instead of msprobe's function arguments."""

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
    """Replace the argument's name at the start of a ConfigError with the flag's."""
    try:
        yield
    except ConfigError as error:
        argument, colon, rest = str(error).partition(":")
        raise ConfigError(f"{TYPED.get(argument, argument)}{colon}{rest}") from error
