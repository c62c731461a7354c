"""The library of healthy loops: training as people write it, where no rule has anything to say.

Each recipe is a function of `recipes/` with the decorator `loop`. It builds a model, calls `watch(model, optimizer)`,
which is `vario.watch` with its default settings, and trains. A seed splits the loops into those that rules may be tuned
on and those that are held out, once and for all, by their names.
"""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

SPLIT_SEED = "19"
Watch = Callable[..., Any]
Recipe = Callable[..., None]


@dataclass(frozen=True)
class Loop:
    """One healthy training."""

    name: str
    recipe: Recipe
    steps: int
    options: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    """The file of recipes that added it."""

    @property
    def is_held_out(self) -> bool:
        """Whether no rule may be tuned on it: variants of one recipe are on the same side."""
        digest = hashlib.sha256(f"{SPLIT_SEED}/{self.recipe.__name__}".encode()).digest()
        return bool(digest[0] % 2)

    @property
    def seed(self) -> int:
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:3], "big")

    def train(self, watch: Watch) -> None:
        """Train it, watched by `watch(model, optimizer)`."""
        import torch

        torch.manual_seed(self.seed)
        self.recipe(watch, self.steps, **self.options)


_FOUND: dict[str, Loop] = {}


def loop(steps: int = 300, **variants: Mapping[str, Any]) -> Callable[[Recipe], Recipe]:
    """Add a recipe to the library, once as it is, and once for each variant with other options, `steps` among them."""

    def wrap(recipe: Recipe) -> Recipe:
        for name, options in {"": {}, **variants}.items():
            others = {key: value for key, value in options.items() if key != "steps"}
            full = f"{recipe.__name__}-{name}" if name else recipe.__name__
            _add(Loop(full, recipe, options.get("steps", steps), others, file_of(recipe.__module__)))
        return recipe

    return wrap


def longer(module: str, steps: int, *recipes: Recipe) -> None:
    """Add a long run of each of these recipes, on behalf of a module."""
    for recipe in recipes:
        _add(Loop(f"{recipe.__name__}-{steps}", recipe, steps, file=file_of(module)))


def file_of(module: str) -> str:
    return module.rpartition(".")[2]


def _add(found: Loop) -> None:
    assert found.name not in _FOUND, found.name
    _FOUND[found.name] = found


@cache
def all_loops() -> dict[str, Loop]:
    """Every loop by name."""
    from zoo.healthy import recipes

    for module in pkgutil.iter_modules(recipes.__path__):
        importlib.import_module(f"zoo.healthy.recipes.{module.name}")
    return dict(sorted(_FOUND.items()))
