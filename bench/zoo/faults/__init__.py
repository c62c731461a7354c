"""Faults: each a small class that does nothing until its step, and then what a real bug would do.

A class in a file of this folder is a fault when it sets `origin`. Its docstring says what goes wrong; its `setups` are
the trainings it is tried on, one for each seed in turn. The constructor is called before the model is watched: it
draws site, strength, rank and step, puts dormant pieces in place, and states the truth.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import nn

from zoo.samples import Batch
from zoo.setups import nth_of
from zoo.truth import Truth

if TYPE_CHECKING:
    from zoo.training import Training

Choice = TypeVar("Choice")


class Draw:
    """The choices of one fault and seed. Seeds of the zoo never choose the same place or step twice."""

    def __init__(self, fault: str, seed: int) -> None:
        self.nth = nth_of(seed)
        self._order = fault
        self.random = random.Random(f"{fault}/{seed}")

    def pick(self, options: Sequence[Choice], salt: str = "") -> Choice:
        """One of the options; seeds go through them in turn."""
        shuffled = list(options)
        random.Random(self._order + salt).shuffle(shuffled)
        return shuffled[self.nth % len(shuffled)]

    def between(self, low: float, high: float, salt: str = "") -> float:
        """A number; each seed has a quarter of the range to itself."""
        quarter = self.pick([0, 1, 2, 3], f"between{salt}")
        return low + (high - low) * (quarter + self.random.random()) / 4

    def strength(self, low: float, high: float) -> float:
        """As `between`, evenly over orders of magnitude."""
        return float(low * (high / low) ** self.between(0, 1, "strength"))

    def step(self, low: int = 60, high: int = 180) -> int:
        return int(self.between(low, high, "step"))

    def rank(self, training: Training) -> int:
        return self.pick(range(training.setup.ranks), "rank")


class Fault:
    """The base, which is also the fault of a healthy run: nothing happens anywhere."""

    origin: ClassVar[str] = ""
    """`sheet`: one of the faults people know; `own`: in no document. Empty: not a fault."""
    setups: ClassVar[tuple[str, ...]] = ()
    name: ClassVar[str] = ""
    """What it is called where that is not the class's name in small letters."""
    truth: Truth

    def __init__(self, training: Training, draw: Draw) -> None:
        self.training, self.draw = training, draw
        self.model = training.bare
        self.build()

    @staticmethod
    def none() -> Fault:
        return Fault.__new__(Fault)

    def build(self) -> None:
        """Choose everything, install what sleeps until its step, set `truth`."""

    @property
    def is_active(self) -> bool:
        return self.training.step >= self.truth.t0

    @property
    def is_now(self) -> bool:
        return self.training.step == self.truth.t0

    @property
    def is_here(self) -> bool:
        """Whether the fault is on this rank."""
        return self.truth.rank is None or self.training.rank == self.truth.rank

    @property
    def age(self) -> int:
        return self.training.step - self.truth.t0

    # Where a fault gets its hands in

    def before_step(self) -> None:
        """The step begins."""

    def rate(self, rate: float) -> float:
        return rate

    def clears_gradients(self) -> bool:
        return True

    def batch(self, batch: Batch) -> Batch:
        return batch

    def to_backward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss

    def before_clipping(self) -> None:
        """Gradients are complete, reduced and unscaled."""

    def before_update(self) -> None:
        """The optimizer is next."""

    def after_update(self) -> None:
        """The optimizer has run."""


@cache
def all_faults() -> dict[str, type[Fault]]:
    """Every fault by name, those of the sheet first."""
    found = {}
    for module in pkgutil.iter_modules(__path__):
        for name, part in vars(importlib.import_module(f"zoo.faults.{module.name}")).items():
            if isinstance(part, type) and issubclass(part, Fault) and part.__dict__.get("origin"):
                found[part.__dict__.get("name") or snake_case(name)] = part
    return dict(sorted(found.items(), key=lambda item: (item[1].origin != "sheet", item[0])))


def snake_case(name: str) -> str:
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in name).lstrip("_")


# Places in a model


def modules_of(model: nn.Module, *kinds: type[nn.Module]) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, kinds)]


def matrices_of(model: nn.Module) -> list[str]:
    """Weights of linear, convolution and recurrent layers, without the output layer."""
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and not name.startswith(("tokens", "positions", "head")) and "experts" not in name
    ]


def blocks_of(model: nn.Module) -> list[str]:
    """The repeated parts of a model."""
    return [name for name, _ in model.named_modules() if name.count(".") == 1 and name.split(".")[1].isdigit()]


def change_output(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let a module return something else: a bug inside its forward, where every hook sees its result."""
    original = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return change(original(*args, **kwargs))

    module.forward = forward


def change_gradient(model: nn.Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Let the backward pass leave another gradient in a parameter: before ranks exchange it, before anybody looks."""
    parameter_of(model, name).register_hook(change)  # type: ignore[no-untyped-call]


def parameter_of(model: nn.Module, name: str) -> nn.Parameter:
    return model.get_parameter(name)
