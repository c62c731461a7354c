"""Ratios of an earlier run, by machine and case: a later run fails if one is worse by more than the noise of both."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

KEPT = Path(__file__).with_name("kept_ratios.json")
LEAST_NOISE = 0.03
"""Rounds of one run are closer to each other than those of two days."""


def keep(where: str, found: Mapping[str, Sequence[float]]) -> None:
    """Store the median ratio of each case and how far its rounds are apart."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept[where] = {case: {"ratio": _middle(ratios), "noise": _noise(ratios)} for case, ratios in found.items()}
    KEPT.write_text(json.dumps(kept, indent=2, sort_keys=True) + "\n")


def check(where: str, found: Mapping[str, Sequence[float]]) -> None:
    """Exit with an error if a case costs more than it did, by more than the noise."""
    kept = json.loads(KEPT.read_text()).get(where, {}) if KEPT.exists() else {}
    if not kept:
        sys.exit(f"no ratios are kept for '{where}': run with --keep first")
    worse = []
    for case, ratios in found.items():
        before = kept.get(case)
        if before is None:
            continue
        allowed = before["ratio"] + before["noise"] + _noise(ratios)
        text = f"{case}: {_middle(ratios):.3f}, kept {before['ratio']:.3f}, allowed {allowed:.3f}"
        print(text)
        if _middle(ratios) > allowed:
            worse.append(text)
    if worse:
        sys.exit("worse than the kept ratios: " + "; ".join(worse))


def _middle(ratios: Sequence[float]) -> float:
    return round(statistics.median(ratios), 4)


def _noise(ratios: Sequence[float]) -> float:
    return round(max(LEAST_NOISE, (max(ratios) - min(ratios)) / 2), 4)
