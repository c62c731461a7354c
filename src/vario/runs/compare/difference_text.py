"""Where two runs diverge, as text."""

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
    """Describe where two runs diverge, as a paragraph."""
    return " ".join(sentences(found))


def sentences(found: Difference) -> Iterator[str]:
    """Yield whether, where and by how much two runs diverge, and what else differs."""
    if not found.num_targets or not found.num_steps:
        yield f"{found.a.name} and {found.b.name} share no step and target, so nothing was compared."
        return
    common = f"{found.num_steps} common steps ({found.first_step} to {found.last_step}) and {found.num_targets} targets"
    if found.first_unequal is None:
        yield f"Bit-identical in {common}."
    elif found.divergence is None:
        yield f"They do not diverge beyond {noise_words(found)} in {common}."
        yield f"The first difference is at step {found.first_unequal.step}: {place_words(found.first_unequal)}."
    else:
        yield f"They diverge at step {found.divergence.step}: {place_words(found.divergence)}."
        if found.noise == "none":
            yield "Everything recorded before that is bit-identical."
        else:
            before = f"the largest difference before was {size_words(found.divergence.noise)}"
            yield f"That is beyond {noise_words(found)}: {before}."
    if found.noise == "own" and found.start:
        worst = max(found.start, key=lambda quantity: found.start[quantity])
        yield (
            f"They differ from the first common step (median difference of {worst}: {size_words(found.start[worst])}): "
            "different weights, data or seeds."
        )
    yield from _others(found)


def place_words(place: Place) -> str:
    """Describe a place with its two numbers."""
    what = place.target if place.quantity == "scalar" else f"{place.quantity.replace('_', ' ')} of '{place.target}'"
    statistic = "" if place.quantity == "scalar" else f"{place.statistic} "
    size = abs(float(np.log(place.a) - np.log(place.b))) if place.a > 0 and place.b > 0 else place.size
    apart = "" if np.isnan(place.a + place.b) else f" ({size_words(size)} apart)"
    return f"{what}, {statistic}{number(place.a, 6)} against {number(place.b, 6)}{apart}"


def size_words(size: float) -> str:
    """Describe a difference: per cent if that reads well, else a factor."""
    if not size:
        return "nothing"
    if size >= 20:  # of a NaN, or nearly
        return "far"
    share = float(np.expm1(size))
    return f"{number(100 * share, 2)} %" if share < 1 else f"{number(share + 1, 3)} times"


def noise_words(found: Difference) -> str:
    """Describe the kind of noise."""
    return {"none": "nothing", "rounding": "rounding", "own": "their own noise"}[found.noise]


def _others(found: Difference) -> Iterator[str]:
    if found.renamed:
        yield f"Names were matched by {found.renamed}."
    counts = [(len(found.only_a), found.a.name), (len(found.only_b), found.b.name)]
    only = [f"{count} target{'s' if count > 1 else ''} only in {name}" for count, name in counts if count]
    if only:
        yield f"There are {' and '.join(only)}."
    if found.settings:
        first = [(key, cut(*values)) for key, values in list(found.settings.items())[:SETTINGS_NAMED]]
        named = [f"{key} {ours} / {theirs}" for key, (ours, theirs) in first]
        rest = len(found.settings) - len(named)
        yield f"Settings differ: {'; '.join(named)}{f'; and {rest} more' if rest else ''}."


def cut(a: object, b: object, most: int = 60) -> tuple[str, str]:
    """Return two values as text: whole, or where they are long, from just before the place where they differ."""
    texts = str(a), str(b)
    if max(map(len, texts)) <= most:
        return texts
    same = next((at for at, pair in enumerate(zip(*texts, strict=False)) if len(set(pair)) > 1), min(map(len, texts)))
    start = max(0, same - most // 3)
    return _piece(texts[0], start, most), _piece(texts[1], start, most)


def _piece(text: str, start: int, most: int) -> str:
    before, after = "..." if start else "", "..." if len(text) > start + most else ""
    return f"{before}{text[start : start + most]}{after}"
