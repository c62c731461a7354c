"""Rows of a heat map whose numbers are no sizes: token ids and attention masks. They are neither large nor broken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vario.core.records import INFS, MAX, MIN, NANS, Table
from vario.rules.api.masks import are_masks
from vario.rules.api.step_view import Facts
from vario.runs.files.store_reader import summaries
from vario.runs.reader import RunReader

INDICES, MASK = "indices", "mask"
LOWEST = (*(float(np.finfo(kind).min) for kind in (np.float16, np.float32)), -3.3895314e38)
"""What masks contain instead of -inf: the lowest number of a dtype, bfloat16 last."""


def row_kinds(run: RunReader, quantity: str, targets: Sequence[str], rank: int | str) -> dict[str, str]:
    """Return the targets that hold token ids (`indices`) or a mask, as seen in the first and the last step."""
    if quantity != "activation" or not run.ranks:
        return {}
    reader = rank if isinstance(rank, int) else run.ranks[0]
    steps = run.steps(quantity, reader)
    if not len(steps):
        return {}
    found = [_kinds_at(run, int(step), reader, set(targets)) for step in sorted({steps[0], steps[-1]})]
    return {name: kind for name, kind in found[0].items() if found[-1].get(name) == kind}


def _kinds_at(run: RunReader, step: int, rank: int, wanted: set[str]) -> dict[str, str]:
    table = run.frame(step, "activation", rank)
    names, rows = table.column("target").to_pylist(), summaries(table)
    facts = Facts.read(rank, run.world_size, dict(run.structure(rank)))
    are_ids = facts.are_indices(names, rows)
    hide = are_masks(names, rows) | _hide(names, rows)
    kinds = zip(names, are_ids.tolist(), hide.tolist(), strict=True)
    return {name: INDICES if is_id else MASK for name, is_id, hides in kinds if (is_id or hides) and name in wanted}


def _hide(names: Sequence[str], rows: Table) -> npt.NDArray[np.bool_]:
    """Masks without -inf: inputs whose lowest element is the lowest of their dtype, and whose highest is 0."""
    is_input = np.array([":input" in name for name in names], np.bool_)
    lowest = np.isin(rows[:, MIN].astype(np.float32), np.array(LOWEST, np.float32))
    found: npt.NDArray[np.bool_] = is_input & lowest & (rows[:, MAX] <= 0) & (rows[:, NANS] == 0) & (rows[:, INFS] == 0)
    return found
