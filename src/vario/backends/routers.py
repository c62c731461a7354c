"""Routers of a mixture of experts, in any framework: which modules are routers, and how many experts they choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

from vario.core.text import unknown

_ROUTER_NAMES = frozenset({"gate", "router", "gating"})
_NUM_EXPERTS = (
    *("num_experts", "n_routed_experts", "num_local_experts", "n_experts", "moe_num_experts", "num_moe_experts"),
    *("num_routed_experts",),
)
_TOP_K = (
    *("top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_router_topk"),
    *("num_selected_experts", "n_activated_experts", "experts_per_token", "moe_k"),
)
_EXPERTS = re.compile("experts?$", re.IGNORECASE)


class Routing(TypedDict, total=False):
    """What a router decided, as a function of your own may return it; give `choices`, `logits` or both."""

    choices: Any
    """For each token the indices of its experts, or a boolean map over (tokens, experts). -1: a dropped choice."""
    logits: Any
    """(..., experts)"""
    num_experts: int
    """Needed if there are no logits and the module does not say it."""
    top_k: int
    """How many experts a token asks for; needed with a map to count dropped tokens, and with logits alone."""


def check_routing(found: Any) -> Routing:
    """Return what a function of the user's returned, or raise if it is not a Routing."""
    if not isinstance(found, Mapping):
        raise ValueError(f"expected a dict with 'choices' or 'logits', got {type(found).__name__}")
    known = [*Routing.__annotations__]
    for key in found:
        if key not in known:
            raise ValueError(unknown("routing", str(key), known))
    if found.get("choices") is None and found.get("logits") is None:
        raise ValueError("expected 'choices' or 'logits', got neither")
    return Routing(**found)  # type: ignore[typeddict-item]


class RouterNames:
    """The routers among a model's modules."""

    def __init__(self, modules: Mapping[str, Any], children: Callable[[Any], Iterable[tuple[str, Any]]]) -> None:
        """`children` returns the modules right below one, with their names there."""
        self._children = children
        parents = ((child, module) for module in modules.values() for _, child in children(module))
        self._parents = {id(child): parent for child, parent in parents}

    def names(self, chosen: Mapping[str, Any]) -> list[str]:
        """Return those of the chosen modules that are routers, by name or class and the experts beside them."""
        return [name for name, module in chosen.items() if self._is_router(name, module)]

    def _is_router(self, name: str, module: Any) -> bool:
        is_called_so = name.rpartition(".")[2] in _ROUTER_NAMES or type(module).__name__.endswith("Router")
        if not is_called_so:
            return False
        parent = self._parents.get(id(module))
        beside = () if parent is None else self._children(parent)
        has_experts = any(child is not module and _is_of_experts(key, child) for key, child in beside)
        number = _number(module, _NUM_EXPERTS)
        return has_experts or (number is not None and number > 1)

    def num_experts(self, module: Any, widths: Sequence[int]) -> int | None:
        """Return as many as the model says, or a few more if there are logits of experts that do nothing.

        `widths`: the last dimensions of the matrices that the router returns.
        """
        said = self._look_up(module, _NUM_EXPERTS)
        if said is None or said in widths:
            return said or next(iter(widths), None)
        return min((width for width in widths if said < width <= 2 * said), default=said)

    def top_k(self, module: Any) -> int:
        """Return how many experts a router chooses for each token."""
        return self.said_top_k(module) or 1

    def said_top_k(self, module: Any) -> int | None:
        """Return how many experts a router says it chooses for each token; None if it does not say."""
        return _number(module, ("k",)) or self._look_up(module, _TOP_K)

    def _look_up(self, module: Any, names: Sequence[str]) -> int | None:
        """Look in the router itself, then in the layer around it and the experts there, then in the model's config."""
        # A model's config may have a `top_k` for generating text.
        of_configs = [name for name in names if "expert" in name or "moe" in name]
        here: Any | None = module
        found = _number(module, names)
        while found is None and here is not None:
            found = _number(getattr(here, "config", None), of_configs)
            here = self._parents.get(id(here))
            if here is not None and found is None:
                beside = [child for key, child in self._children(here) if _is_of_experts(key, child)]
                numbers = (_number(place, names) for place in (here, *beside))
                found = next((number for number in numbers if number is not None), None)
        return found


def _is_of_experts(name: str, module: Any) -> bool:
    return bool(_EXPERTS.search(name) or _EXPERTS.search(type(module).__name__))


def _number(place: Any, names: Sequence[str]) -> int | None:
    for name in names:
        value = getattr(place, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
