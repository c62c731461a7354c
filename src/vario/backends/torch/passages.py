"""Gradients of a module's inputs as they come back through that module alone.

Autograd adds up what all users of a tensor send back. What one of them sends is seen on the edges of the graph that
lead from the nodes it made to its input. Nothing is put into the graph for that: a view of the input would be another
place where gradients are summed, so another rounding, and another tensor than the one the caller gave.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.graph import Node, get_gradient_edge

from vario.backends.torch import hooks
from vario.backends.torch.tensors import leaves

Edge = tuple[Node, int]
"""A node of the graph and which of its results."""
Came = Callable[[torch.Tensor], None]
Failed = Callable[[Exception], None]


class Passage:
    """One call of a module: made before its forward, finished after it."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # The same tensor may be given twice, as query and as key: each place has the gradient of both.
        self._places: dict[Edge, list[tuple[str, torch.Tensor]]] = {}
        self._first_node = _get_sequence_nr()
        names = ["input"] if len(args) == 1 else [f"input.{index}" for index in range(len(args))]
        names += [f"input.{key}" for key in kwargs]
        for name, value in zip(names, [*args, *kwargs.values()], strict=True):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                edge = get_gradient_edge(value)
                self._places.setdefault((edge.node, edge.output_nr), []).append((name, value))

    def follow(self, output: Any, came: Callable[[str, torch.Tensor], Came], failed: Failed) -> None:
        """Run `came(path, input)(gradient)` in backward for each input from which this output was computed."""
        if not self._places:
            return
        try:
            computed = [tensor for _, tensor in leaves(output, "output") if tensor.grad_fn is not None]
            ends = {tensor.grad_fn for tensor in computed if tensor.grad_fn is not None}
            for tensor in computed:
                # Returned as it came: no node tells its users apart, so it is the gradient from all of them.
                for path, value in self._places.get(get_gradient_edge(tensor)[:2], ()):
                    hooks.on_gradient(tensor, came(path, value))
            for edge, users in self._users(ends).items():
                calls = [came(path, tensor) for path, tensor in self._places[edge]]
                gathered = _Gathered(len(users), calls, failed)
                for node, place in users:
                    node.register_hook(gathered.receives(place))
        except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything when opened
            failed(error)

    def _users(self, ends: set[Node]) -> dict[Edge, list[Edge]]:
        """Per input, the nodes this call made that use it, each with the place it has among what they use."""
        users: dict[Edge, list[Edge]] = {}
        waiting = [node for node in ends if self._is_of_this_call(node)]
        seen = set(waiting)
        while waiting:
            node = waiting.pop()
            for place, edge in enumerate(node.next_functions):
                if edge in self._places:
                    users.setdefault(edge, []).append((node, place))
                elif edge[0] is not None and edge[0] not in seen and self._is_of_this_call(edge[0]):
                    seen.add(edge[0])
                    waiting.append(edge[0])
        return users

    def _is_of_this_call(self, node: Node) -> bool:
        return node._sequence_nr() >= self._first_node


class _Gathered:
    """What the users of one input inside one module send back, added up."""

    def __init__(self, num_users: int, calls: list[Came], failed: Failed) -> None:
        self._num_users = num_users
        self._calls = calls
        self._failed = failed
        self._num_waiting = num_users
        self._total: torch.Tensor | None = None

    def receives(self, place: int) -> Callable[[Any, Any], None]:
        """The hook of one user."""

        def hook(gradients: tuple[torch.Tensor | None, ...], _: Any) -> None:
            try:
                self._receive(gradients[place])
            except Exception as error:  # noqa: BLE001 - the failure policy
                self._failed(error)

        return hook

    def _receive(self, gradient: torch.Tensor | None) -> None:
        if self._num_waiting == self._num_users > 1:
            # A user that this backward does not reach sends nothing.
            hooks.at_end_of_backward(self._finish)
        self._num_waiting -= 1
        if gradient is not None:
            with torch.no_grad():
                self._total = gradient.detach() if self._total is None else self._total + gradient
        if self._num_waiting == 0:
            self._finish()

    def _finish(self) -> None:
        total, self._total, self._num_waiting = self._total, None, self._num_users
        if total is not None:
            for call in self._calls:
                call(total)
