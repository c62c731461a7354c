"""What is known of a run: which fault it has, since when and where. The scorer reads it, no rule ever does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

SCOPES = ("tensor", "rank", "global", "data")

CAUSES: dict[str, tuple[str, ...]] = {
    "lr": ("lr", "learning rate", "rate", "optimizer", "update"),
    "optimizer": ("optimizer", "update", "moment", "learning rate", "lr", "eps", "weight decay"),
    "gradient": ("grad", "gradient", "optimizer", "loss scale", "clip", "accumulation", "reduce"),
    "loss scale": ("loss scale", "underflow", "gradient", "grad"),
    "data": ("data", "batch", "label", "input", "loader"),
    "loss": ("loss", "label", "data", "gradient", "loss scale"),
    "weights": ("weight", "checkpoint", "outside the optimizer", "resume"),
    "time": ("slow", "straggler", "time"),
    "mode": ("eval", "train mode", "norm", "dropout"),
}
"""For each cause the words that name it: a diagnosis that has one of them is right."""


@dataclass(frozen=True, kw_only=True)
class Truth:
    """Where a fault really is."""

    t0: int
    """The first step that the fault touches."""
    site: str | None = None
    """The module or parameter it sits in."""
    rank: int | None = None
    scope: str = "tensor"
    """tensor: one place in the model; rank: one rank; global: the whole update; data: what is trained on."""
    cause: tuple[str, ...] = ()
    """Keys of CAUSES: what a right diagnosis says."""
    also: tuple[str, ...] = ()
    """Other names for the same place: a tied weight, the activation that a bias kills."""
    also_ranks: tuple[int, ...] = ()
    note: str = ""
    """What was done, with its strength."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Truth:
        lists = {key: tuple(content[key]) for key in ("cause", "also", "also_ranks")}
        return Truth(**{**content, **lists})

    @property
    def words(self) -> frozenset[str]:
        return frozenset(word for key in self.cause for word in CAUSES[key])

    @property
    def has_place(self) -> bool:
        """Whether there is one culprit to name, a module or a rank."""
        return self.site is not None or self.rank is not None
