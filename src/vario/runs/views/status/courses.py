"""The course of every plain number of a run in a few figures: first, last, lowest and highest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

HIGHER_IS_BETTER = re.compile(
    r"(^|[_/.\-])(acc(uracy)?|f1|auc|auroc|map|ap|iou|dice|bleu|rouge\w*|recall|precision|reward|return|score|r2|psnr|"
    r"ssim|win_?rate|success|pass|exact_match|em|throughput|\w*per_second)([_/.\-@]|\d|$)",
    re.IGNORECASE,
)
"""Names of numbers whose highest value is the best; of others it is the lowest."""


@dataclass(frozen=True)
class Course:
    """One plain number over a run."""

    first: float
    last: float
    lowest: float
    """Of its finite values; NaN if it has none."""
    highest: float
    num_points: int


def is_better_higher(name: str) -> bool:
    """Whether the highest value of a number is its best, by its name."""
    return HIGHER_IS_BETTER.search(name) is not None


def read_courses(
    names: Sequence[str], codes: npt.NDArray[np.int64], steps: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> dict[str, Course]:
    """Return the course of each name; `codes` says which name each row has."""
    if not len(codes):
        return {}
    order = np.lexsort((steps, codes))
    codes, values = codes[order], values[order]
    starts = np.flatnonzero(np.concatenate([[True], np.diff(codes) != 0]))
    ends = np.append(starts[1:], len(codes)) - 1
    finite = np.where(np.isfinite(values), values, np.nan)
    with np.errstate(all="ignore"):
        lowest, highest = np.fmin.reduceat(finite, starts), np.fmax.reduceat(finite, starts)
    figures = zip(
        codes[starts].tolist(),
        values[starts].tolist(),
        values[ends].tolist(),
        lowest.tolist(),
        highest.tolist(),
        (ends - starts + 1).tolist(),
        strict=True,
    )
    return {names[code]: Course(*rest) for code, *rest in figures}
