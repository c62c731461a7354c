"""Launch compiled Triton kernels directly.

Triton's own call inspects every argument to find the compiled kernel, which takes longer than many reductions. Here the
caller knows which kernel it needs: the first launch of a kind goes through Triton, later ones go to its launcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

log = logging.getLogger("vario")

LARGEST = 2**31 - 1
"""Larger whole numbers have another type in the compiled kernel."""


class Kernel:
    """One kernel, in all the variants that were launched."""

    _is_direct = True
    """For all kernels: whether this release of Triton can be called directly."""

    def __init__(self, function: Any) -> None:
        """`function`: its runtime arguments come first, its constants after them."""
        self._function = function
        self._compiled: dict[Any, Callable[..., None]] = {}

    def launch(self, kind: Any, num_programs: int, stream: int, *arguments: Any) -> bool:
        """Launch on a stream of the current device; False if `compile` has to do that.

        `kind` determines the compiled kernel: dtype, alignment and constants. `arguments` has an address for each
        tensor.
        """
        direct = self._compiled.get(kind)
        if direct is None:
            return False
        try:
            direct(num_programs, stream, arguments)
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            # Raised before anything was launched.
            log.debug("kernels are launched through Triton: %s", error)
            Kernel._is_direct = False
            self._compiled.clear()
            return False
        return True

    def compile(self, kind: Any, num_programs: int, *arguments: Any, **constants: Any) -> None:
        """Launch through Triton, which gets the tensors themselves."""
        compiled = self._function[(num_programs,)](*arguments, **constants)
        if Kernel._is_direct and (direct := _direct(compiled, self._function, constants)) is not None:
            self._compiled[kind] = direct


def _direct(compiled: Any, function: Any, constants: Mapping[str, Any]) -> Callable[..., None] | None:
    """Return a call that launches a compiled kernel, if this release of Triton has what it needs."""
    try:
        run, handle, metadata = compiled.run, compiled.function, compiled.packed_metadata
        values = tuple(constants[name] for name in function.arg_names if name in constants)
    except AttributeError:
        return None

    def launch(num_programs: int, stream: int, arguments: tuple[Any, ...]) -> None:
        run(num_programs, 1, 1, stream, handle, metadata, None, None, None, *arguments, *values)

    return launch
