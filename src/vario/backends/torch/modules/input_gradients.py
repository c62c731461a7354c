"""Gradients of a module's inputs as they come back through that module alone.

Autograd sums what all users of a tensor send back. What one of them sends is visible on the edges of the graph that
lead from its nodes to its input. Nothing is inserted into the graph for that: a view of the input would be another
place where gradients are summed, with other rounding, and another tensor than the caller passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._C._autograd import _get_sequence_nr
from torch.autograd.graph import Node, get_gradient_edge

from vario.backends.nested_tensors import leaves
from vario.backends.torch.loop import hooks
from vario.core.process import last_guard

Edge = tuple[Node, int]
"""A node of the graph and which of its results."""
Came = Callable[[torch.Tensor], None]
Failed = Callable[[Exception], None]


class Graph:
    """The graph of the pass in progress, up to the modules that have returned: each node is visited once."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop the pass: what is kept here would keep its graph alive."""
        self._users: dict[Edge, list[tuple[int, Node, int]]] = {}
        """For inputs of modules: the nodes that use them, with their numbers and positions."""
        self._seen: set[Node] = set()
        self._older: set[Node] = set()
        """Nodes that were reached, but created before the call that reached them: for the calls around it."""

    def watch(self, edge: Edge) -> None:
        """Keep the users of a module's input from now on."""
        self._users.setdefault(edge, [])

    def users(self, edge: Edge, first_node: int) -> list[tuple[Node, int]]:
        """Return those created since a call began, each with the position of the input among its own inputs."""
        return [(node, place) for number, node, place in self._users.get(edge, ()) if number >= first_node]

    def grow(self, ends: set[Node], first_node: int) -> None:
        """Visit all nodes created since a call began, which has returned what these nodes made."""
        waiting = [node for node in (*ends, *self._older) if node._sequence_nr() >= first_node]
        self._older.difference_update(waiting)
        while waiting:
            node = waiting.pop()
            if node in self._seen:
                continue
            self._seen.add(node)
            number = node._sequence_nr()
            for place, (before, result) in enumerate(node.next_functions):
                if before is None:
                    continue
                users = self._users.get((before, result))
                if users is not None:
                    users.append((number, node, place))
                if before not in self._seen:
                    if before._sequence_nr() >= first_node:
                        waiting.append(before)
                    else:
                        self._older.add(before)


class CallInputs:
    """One call of a module: created before its forward, finished after it."""

    def __init__(self, graph: Graph, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        # The same tensor may be passed twice, as query and as key: each position has the gradient of both.
        self._places: dict[Edge, list[tuple[str, torch.Tensor]]] = {}
        self._graph = graph
        self._first_node = _get_sequence_nr()
        names = ["input"] if len(args) == 1 else [f"input.{index}" for index in range(len(args))]
        names += [f"input.{key}" for key in kwargs]
        for name, value in zip(names, [*args, *kwargs.values()], strict=True):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                edge = get_gradient_edge(value)
                self._places.setdefault((edge.node, edge.output_nr), []).append((name, value))
                graph.watch((edge.node, edge.output_nr))

    def follow(self, output: Any, came: Callable[[str, torch.Tensor], Came], failed: Failed) -> None:
        """Run `came(path, input)(gradient)` in backward for each input from which this output was computed."""
        try:
            computed = [tensor for _, tensor in leaves(torch.Tensor, output, "output") if tensor.grad_fn is not None]
            self._graph.grow({tensor.grad_fn for tensor in computed if tensor.grad_fn is not None}, self._first_node)
            for tensor in computed if self._places else ():
                # Returned unchanged: no node separates its users, so this is the gradient from all of them.
                for path, value in self._places.get(get_gradient_edge(tensor)[:2], ()):
                    hooks.on_gradient(tensor, came(path, value))
            for edge, places in self._places.items():
                users = self._graph.users(edge, self._first_node)
                if not users:
                    continue
                gathered = _Gathered(len(users), [came(path, tensor) for path, tensor in places], failed)
                for node, place in users:
                    node.register_hook(last_guard.never_raises(gathered.receives(place)))
        except Exception as error:  # noqa: BLE001 - the failure policy: a container may raise anything when opened
            failed(error)


class _Gathered:
    """The sum of what the users of one input inside one module send back."""

    def __init__(self, num_users: int, calls: list[Came], failed: Failed) -> None:
        self._num_users = num_users
        self._calls = calls
        self._failed = failed
        self._num_waiting = num_users
        self._total: torch.Tensor | None = None

    def receives(self, place: int) -> Callable[[Any, Any], None]:
        """Return the hook of one user."""

        def hook(gradients: tuple[torch.Tensor | None, ...], _: Any) -> None:
            try:
                self._receive(gradients[place])
            except Exception as error:  # noqa: BLE001 - the failure policy
                self._failed(error)

        return hook

    def _receive(self, gradient: torch.Tensor | None) -> None:
        if self._num_users == 1:
            if gradient is not None:
                for call in self._calls:
                    call(gradient)
            return
        if self._num_waiting == self._num_users:
            # A user that this backward pass does not reach sends nothing.
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
