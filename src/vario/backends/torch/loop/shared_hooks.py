"""One table of hooks for very many parameters."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable

import torch
from torch.utils.hooks import RemovableHandle

from vario.backends.torch.loop import hooks

_TABLE = "_post_accumulate_grad_hooks"

Call = Callable[[torch.Tensor], None]


class SharedHooks:
    """Runs one call whenever backward has added to the gradient of any of its parameters.

    This does what `register_post_accumulate_grad_hook` does, but all parameters share one table of hooks instead of
    having one each: a hundred thousand tables take longer and more memory than everything else.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._key = RemovableHandle(OrderedDict()).id
        self._table: OrderedDict[int, Call] = OrderedDict({self._key: call})
        self._sharing: list[torch.Tensor] = []
        self._apart: list[torch.Tensor] = []
        # A hook set by other code belongs to one parameter.
        self._undo = hooks.around(
            torch.Tensor, "register_post_accumulate_grad_hook", before=lambda tensor, *_: self.separate(tensor)
        )

    def add(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Follow these parameters as well."""
        for parameter in parameters:
            if getattr(parameter, _TABLE) is None:
                setattr(parameter, _TABLE, self._table)
                self._sharing.append(parameter)
            else:
                getattr(parameter, _TABLE)[self._key] = self._call
                self._apart.append(parameter)

    def run_meanwhile(self, call: Call | None) -> None:
        """Run another call for all parameters that share the table; None: the usual one again."""
        self._table[self._key] = self._call if call is None else call

    def separate(self, parameter: torch.Tensor) -> None:
        """Give a parameter its own table, which always has the usual call."""
        if getattr(parameter, _TABLE) is self._table:
            setattr(parameter, _TABLE, OrderedDict({self._key: self._call}))
            self._apart.append(parameter)

    def remove(self) -> None:
        """Leave the parameters as they were."""
        self._undo()
        while self._apart:
            (getattr(self._apart.pop(), _TABLE) or {}).pop(self._key, None)
        self._table.clear()  # what torch made of it stays with a parameter whose hooks are set to None
        while self._sharing:
            if getattr(parameter := self._sharing.pop(), _TABLE) is self._table:
                setattr(parameter, _TABLE, None)
