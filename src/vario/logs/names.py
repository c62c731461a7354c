"""Names that other tools use for the loss, the learning rate and the gradient norm."""

from __future__ import annotations

import re
from collections.abc import Iterable

from vario.logs.history import GRADIENT_NORM, LOSS, RATE

WORDS = {
    LOSS: ("loss", "train_loss", "training_loss", "lm_loss", "train_loss_step", "loss_step", "reduced_train_loss"),
    RATE: ("learning_rate", "lr", "train_lr"),
    GRADIENT_NORM: ("grad_norm", "gradient_norm", "global_grad_norm", "train_grad_norm", "grad_2_0_norm_total"),
}
"""For each of our names its names elsewhere, most likely first, in lower case with underscores."""

EVALUATION = re.compile(r"(?:eval|evaluation|val|valid|validation|test)_")
TRAINING = re.compile(r"(?:train|training)_(?:samples_)?")


def canonical_names(found: Iterable[str]) -> dict[str, str]:
    """Map each name of a log to ours; names without a counterpart are unchanged."""
    originals = list(found)
    plain = {name: re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") for name in originals}
    renamed: dict[str, str] = {}
    for ours, words in WORDS.items():
        ranked = [(_rank(plain[name], words), name) for name in originals]
        usable = sorted((rank, name) for rank, name in ranked if rank is not None)
        if usable:
            renamed[usable[0][1]] = ours
    for name in originals:
        if name not in renamed and (match := EVALUATION.match(plain[name])):
            renamed[name] = f"eval_{_without(plain[name], match)}"
        elif name not in renamed and plain[name].endswith("_validation"):
            rest = plain[name].removesuffix("_validation")
            renamed[name] = f"eval_{LOSS if rest in WORDS[LOSS] else rest}"
    return {name: renamed.get(name, name) for name in originals}


def is_evaluation(name: str) -> bool:
    """Whether a metric is from an evaluation."""
    return EVALUATION.match(name.replace("/", "_")) is not None


def _rank(name: str, words: tuple[str, ...]) -> int | None:
    for candidate in (name, TRAINING.sub("", name, count=1)):
        if candidate in words:
            return words.index(candidate)
    # Lightning's rate monitor writes `lr-AdamW`, and `lr-AdamW/pg1` for groups.
    return len(words) if words is WORDS[RATE] and name.startswith("lr_") else None


def _without(name: str, match: re.Match[str]) -> str:
    return name[match.end() :]
