"""How two runs compare: where they diverge beyond noise, what differs most, and what only one of them has."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from vario.core.errors import ConfigError
from vario.core.text import unknown
from vario.runs.compare.difference_text import difference_text
from vario.runs.compare.divergence import (
    FARTHEST,
    ROUNDING,
    THRESHOLD,
    Pairs,
    Place,
    comes_after_equals,
    first_divergence,
    first_unequal,
    kind_of_noise,
    paired,
)
from vario.runs.compare.name_alignment import find_translation, translation
from vario.runs.files.listing_cache import listings_cached
from vario.runs.findings.movements import median
from vario.runs.reader import RunReader
from vario.runs.views.grid import read_grid

MOST_DEVIATIONS = 1000.0
EXACT_STEPS = 3
"""Runs that are bit-identical for this many steps have no noise: any difference is a divergence."""
PASSED_OVER = ("checksum", "communication")
NOT_COMPARED = ("name", "directory", "resume", "first_step", "notify", "actions", "live", "origin")


@dataclass(frozen=True)
class Differing:
    """A target that differs at the end."""

    quantity: str
    target: str
    statistic: str
    a: float
    b: float
    size: float
    """How far `a` and `b` are apart: the logarithm of their ratio, or of 1 plus their relative difference."""
    deviations: float
    """In units of how much each run varies by itself; at most 1,000."""


@dataclass(frozen=True)
class Difference:
    """How two runs compare. Its `str` is the text."""

    a: Path
    b: Path
    num_steps: int
    """Number of common steps."""
    first_step: int | None
    last_step: int | None
    num_targets: int
    """Number of common targets."""
    renamed: str
    """How names of the first run were mapped to those of the second, if they were."""
    first_unequal: Place | None
    """The first place at which they are not bit-identical; None if they always are."""
    divergence: Place | None
    """The first place at which they differ by more than noise."""
    noise: str
    """The kind of noise: none, rounding or own."""
    start: dict[str, float]
    """Per quantity: the median difference of its targets at the first common step."""
    most: tuple[Differing, ...]
    """Those that differ most beyond their own noise first."""
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    settings: dict[str, tuple[Any, Any]]
    """Options and versions that differ."""

    def __str__(self) -> str:
        return difference_text(self)


@listings_cached()
def diff(
    a: RunReader, b: RunReader, rename: Iterable[str] = (), quantities: Sequence[str] | None = None, top: int = 10
) -> Difference:
    """Compare two runs: where they first diverge beyond noise, and which targets differ most.

    Steps are matched by number and targets by name. `rename` is a list of rules such as `'old.*=>new.*'` from names of
    `a` to names of `b`; by default the usual wrappers (`module.`, `_orig_mod.`, ...) are tried.
    """
    recorded = [name for name in a.quantities("all") if name in b.quantities("all")]
    for name in quantities or ():
        if name not in recorded:
            raise ConfigError(unknown("quantity", name, recorded))
    wanted = [name for name in (quantities or recorded) if name not in PASSED_OVER]
    ours = [name for quantity in wanted for name in a.targets(quantity)]
    theirs = {name for quantity in wanted for name in b.targets(quantity)}
    rules = list(rename)
    translate, called = (translation(rules), ", ".join(rules)) if rules else find_translation(ours, theirs)
    pairs: list[Pairs] = []
    only_a, only_b = [], []
    for quantity in wanted:
        first, second = read_grid(a, quantity), read_grid(b, quantity)
        places = {name: row for row, name in enumerate(second.targets)}
        both = [(row, places[new]) for row, name in enumerate(first.targets) if (new := translate(name)) in places]
        matched = {row for row, _ in both}, {row for _, row in both}
        only_a += [f"{quantity} of {name}" for row, name in enumerate(first.targets) if row not in matched[0]]
        only_b += [f"{quantity} of {name}" for row, name in enumerate(second.targets) if row not in matched[1]]
        pairs += paired(first, second, both)
    steps = np.unique(np.concatenate([np.zeros(0, np.int64), *(pair.steps for pair in pairs)]))
    unequal = first_unequal(pairs)
    is_exact = unequal is not None and (
        int((steps < unequal.step).sum()) >= EXACT_STEPS
        or (unequal.size > ROUNDING and comes_after_equals(pairs, unequal))
    )
    where = unequal if is_exact or unequal is None else first_divergence(pairs)
    noise = "none" if unequal is None or is_exact else kind_of_noise(pairs)
    return Difference(
        a=a.path,
        b=b.path,
        num_steps=len(steps),
        first_step=int(steps[0]) if len(steps) else None,
        last_step=int(steps[-1]) if len(steps) else None,
        num_targets=len({(pair.quantity, name) for pair in pairs for name in pair.targets}),
        renamed=called,
        first_unequal=unequal,
        divergence=where,
        noise=noise,
        start=_start(pairs),
        most=tuple(_most(pairs)[:top]),
        only_a=tuple(only_a),
        only_b=tuple(only_b),
        settings=_settings(a, b),
    )


def _start(pairs: Sequence[Pairs]) -> dict[str, float]:
    found = {}
    for pair in pairs:
        if pair.statistic in ("rms", "value"):
            sizes = np.abs(pair.apart[:, 0])
            if not np.isnan(sizes).all():
                found[pair.quantity] = float(np.nanmedian(sizes))
    return found


def _most(pairs: Sequence[Pairs]) -> list[Differing]:
    """Targets sorted by how much they differ in the last tenth of the common steps, beyond their own noise."""
    best: dict[tuple[str, str], tuple[float, Differing]] = {}
    for pair in pairs:
        late = slice(-max(5, len(pair.steps) // 10), None)
        with np.errstate(all="ignore"):
            size = np.abs(median(pair.apart[:, late]))
            deviations = size / np.maximum(pair.own, 1e-9)
            score = np.nan_to_num(size * np.minimum(1.0, deviations / THRESHOLD))
            ends = median(pair.a[:, late]), median(pair.b[:, late])
        for row in np.flatnonzero(score > 0):
            key = pair.quantity, pair.targets[row]
            if key not in best or score[row] > best[key][0]:
                a, b = float(ends[0][row]), float(ends[1][row])
                times = min(float(deviations[row]), MOST_DEVIATIONS)
                best[key] = float(score[row]), Differing(*key, pair.statistic, a, b, _size(a, b, size[row]), times)
    return [found for _, found in sorted(best.values(), key=lambda entry: -entry[0])]


def _size(a: float, b: float, share: float) -> float:
    """How far apart two numbers are that are shown side by side; `share` is their difference relative to their size."""
    if not np.isfinite(a) or not np.isfinite(b):
        return FARTHEST
    if a * b > 0:
        return abs(float(np.log(abs(a)) - np.log(abs(b))))
    return float(np.log1p(share))


def _settings(a: RunReader, b: RunReader) -> dict[str, tuple[Any, Any]]:
    # A run that kept no packages, or of an older version, is not one that had none.
    kinds = a.origin.kinds & b.origin.kinds
    ours, theirs = _flat(a, kinds), _flat(b, kinds)
    keys = dict.fromkeys([*ours, *theirs])
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def _flat(run: RunReader, kinds: Collection[str]) -> dict[str, Any]:
    params = {f"params.{name}": value for name, value in run.params.items()}
    options = {key: value for key, value in run.config.items() if key not in NOT_COMPARED}
    # Options of one rule or quantity differ by themselves, not as a whole table.
    tables = {key: value for key, value in options.items() if isinstance(value, dict)}
    inner = {f"{key}.{name}": value for key, table in tables.items() for name, value in table.items()}
    plain = {key: value for key, value in options.items() if key not in tables}
    versions = {f"version of {name}": version for name, version in run.versions.items()}
    known = {"world_size": run.world_size, "command": run.command}
    if "code" in kinds and (changes := run.code_diff):
        known["changes since the commit"] = f"{len(changes.splitlines())} lines ({crc32(changes.encode()):08x})"
    return {**params, **known, **_named(run.origin.settings(kinds), versions), **plain, **inner, **versions}


def _named(settings: dict[str, Any], versions: dict[str, Any]) -> dict[str, Any]:
    """Without packages whose version is known anyway."""
    known = {name.removeprefix("version of ") for name in versions}
    return {name: value for name, value in settings.items() if name.removeprefix("package ") not in known}
