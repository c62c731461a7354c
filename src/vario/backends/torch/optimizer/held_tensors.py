"""The parameters and the state of one optimizer, looked up once and not in every step."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from vario.backends.torch.engines.optimizers import named_state_tensors

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_NOTHING: Mapping[str, Any] = {}


class HeldTensors:
    """The recorded parameters that an optimizer has had since the last check, and where their state is."""

    def __init__(self, numbers: Iterable[int], names: tuple[str, ...], tensors: list[torch.Tensor]) -> None:
        """`numbers` identifies the parameters: as long as it is the same object, they are the same."""
        self.numbers = numbers
        self.names = names
        self.tensors = tensors
        self._states: list[Mapping[str, Any]] = []
        self._num_entries = 0
        self._places: list[tuple[Mapping[str, Any], str]] = []
        self._names: tuple[str, ...] = ()
        self._is_flat = False
        """Whether every tensor of the state is an entry of its own, not in a list."""

    def moments(self, state: Mapping[Any, Mapping[str, Any]]) -> tuple[Sequence[str], list[torch.Tensor]]:
        """Return names (`weight:exp_avg`) and values of every tensor of the state."""
        # `state` is a defaultdict: looking up an unknown parameter with [] would add an entry.
        states = [found or _NOTHING for found in map(state.get, self.tensors)]
        is_same = len(states) == len(self._states) and all(map(operator.is_, states, self._states))
        if not is_same or sum(map(len, states)) != self._num_entries:
            self._look_up(states)
        if self._is_flat:
            tensors = [entries[key] for entries, key in self._places]
            if _PLAIN.issuperset(map(type, tensors)):
                return self._names, tensors
        found = self._found(states)
        return [f"{name}:{key}" for name, key, _ in found], [tensor for _, _, tensor in found]

    def _found(self, states: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, torch.Tensor]]:
        return [
            (name, key, tensor)
            for name, entries in zip(self.names, states, strict=True)
            for key, tensor in named_state_tensors(entries)
        ]

    def _look_up(self, states: list[Mapping[str, Any]]) -> None:
        self._states, self._num_entries = states, sum(map(len, states))
        by_name = dict(zip(self.names, states, strict=True))
        found = self._found(states)
        self._is_flat = all(key in by_name[name] for name, key, _ in found)
        if self._is_flat:
            self._places = [(by_name[name], key) for name, key, _ in found]
            self._names = tuple(f"{name}:{key}" for name, key, _ in found)
