"""Where two runs part, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from vario.core.text import number
from vario.runs.compare.divergence import Place

if TYPE_CHECKING:
    from vario.runs.compare.difference import Difference

SETTINGS_NAMED = 6


def difference_text(found: Difference) -> str:
    """The parting of two runs as a paragraph."""
    return " ".join(sentences(found))


def sentences(found: Difference) -> Iterator[str]:
    """Whether, where and by how much two runs part, and what else is not the same."""
    if not found.num_targets or not found.num_steps:
        yield f"{found.a.name} and {found.b.name} have no step and target in common, so nothing was compared."
        return
    common = f"{found.num_steps} common steps ({found.first_step} to {found.last_step}) and {found.num_targets} targets"
    if found.first_unequal is None:
        yield f"Equal to the bit in {common}."
    elif found.parting is None:
        yield f"They do not part beyond {noise_words(found)} in {common}."
        yield f"The first difference is at step {found.first_unequal.step}: {place_words(found.first_unequal)}."
    else:
        yield f"They part at step {found.parting.step}: {place_words(found.parting)}."
        if found.noise == "none":
            yield "All that was seen before that was equal to the bit."
        else:
            before = f"the largest difference before was {size_words(found.parting.noise)}"
            yield f"That is beyond {noise_words(found)}: {before}."
    if found.noise == "own" and found.start:
        worst = max(found.start, key=lambda quantity: found.start[quantity])
        yield (
            f"They differ from the first common step on ({worst} by {size_words(found.start[worst])} at the median): "
            "other weights, data or seeds."
        )
    yield from _others(found)


def place_words(place: Place) -> str:
    """A place with its two numbers."""
    what = place.target if place.quantity == "scalar" else f"{place.quantity.replace('_', ' ')} of '{place.target}'"
    statistic = "" if place.quantity == "scalar" else f"{place.statistic} "
    size = abs(float(np.log(place.a) - np.log(place.b))) if place.a > 0 and place.b > 0 else place.size
    return f"{what}, {statistic}{number(place.a, 6)} against {number(place.b, 6)} ({size_words(size)} apart)"


def size_words(size: float) -> str:
    """A difference: per cent while that reads well, else how many times."""
    if not size:
        return "nothing"
    if size >= 20:
        return "beyond measure"
    share = float(np.expm1(size))
    return f"{number(100 * share, 2)} %" if share < 1 else f"{number(share + 1, 3)} times"


def noise_words(found: Difference) -> str:
    """What was taken for noise."""
    return {"none": "nothing", "rounding": "rounding", "own": "their own noise"}[found.noise]


def _others(found: Difference) -> Iterator[str]:
    if found.renamed:
        yield f"Names were matched by {found.renamed}."
    counts = [(len(found.only_a), found.a.name), (len(found.only_b), found.b.name)]
    only = [f"{count} target{'s' if count > 1 else ''} only in {name}" for count, name in counts if count]
    if only:
        yield f"There are {' and '.join(only)}."
    if found.settings:
        named = [f"{key} {_short(a)} / {_short(b)}" for key, (a, b) in list(found.settings.items())[:SETTINGS_NAMED]]
        rest = len(found.settings) - len(named)
        yield f"Settings differ: {'; '.join(named)}{f'; and {rest} more' if rest else ''}."


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
