"""The order in which backward reaches parameters, which seldom changes from step to step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


class GradientOrder:
    """Names of very many parameters in the order of one backward pass; the same objects while the order is the same."""

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter], names: Mapping[int, str]) -> None:
        """`parameters` are the chosen ones, by name; `names` are those of all, by identity."""
        self._parameters = parameters
        self._names = names
        self._numbers: list[int] | None = None
        self.names: tuple[str, ...] = ()
        """Those that were reached, in order, then the others."""
        self.parameters: list[torch.nn.Parameter] = []

    def see(self, fired: Sequence[torch.Tensor | str]) -> None:
        """Take what a backward pass has reached: parameters, or names of them."""
        # Comparing identities is safe: parameters and names live as long as the model.
        numbers = list(map(id, fired))
        if numbers == self._numbers:
            return
        reached = dict.fromkeys([one if isinstance(one, str) else self._names[id(one)] for one in fired])
        chosen = [name for name in reached if name in self._parameters]
        chosen += [name for name in self._parameters if name not in reached]
        self._numbers, self.names = numbers, tuple(chosen)
        self.parameters = [self._parameters[name] for name in chosen]
