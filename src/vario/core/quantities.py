"""What can be watched: every quantity that a probe declares.

The list comes from the folder `probes/` and entry points. It is read on first use, and by name, so that the core knows
what exists without importing it.
"""

from __future__ import annotations

import re
from typing import Any

from vario.core.registry import Registry
from vario.core.run_format import ATTACHMENTS, ROLLUPS, SNAPSHOTS

SCALAR = "scalar"
"""Plain numbers: what you log, step time, memory. They are always recorded."""

LOSS, LOSS_LOCAL, LOSS_BACKWARD = LOSSES = "loss", "loss_local", "loss_backward"
"""Names of the loss: as logged, as returned by the model, or as the tensor backward() was called on."""

GRADIENT_CHANGE = "gradient_change/"
"""Prefix of plain numbers about single gradients that vanish, stand still or change their size; see gradient_watch."""

INPUT_CHANGE, INPUT_WAS, INPUT_SINCE = "input_change/", "input_was/", "input_since/"
"""Prefixes of plain numbers about inputs of the model that have changed, what they were before, and the step in which
that began; see input_watch."""

INPUT_NON_FINITE = "input_non_finite/"
"""Prefix of how many elements of an input of the model are NaN or positive infinity, where gradients are too."""

GRAPH_CHANGE, GRAPH_WAS = "graph_change/", "graph_was/"
GRAPH_SINCE, GRAPH_UNSEEN = "graph_since/", "graph_unseen/"
"""The same about what the loss is computed by: `constant:DivBackward0:factor@layer` and the like; see graph_watch."""

COMPANION_CHANGE, COMPANION_SINCE = "companion_change/", "companion_since/"
"""The same about models that run beside the watched one; see companion_watch."""
COMPANION_COPIED = "companion_copied"
"""Logged where such a model, after keeping still, has taken over the watched one's weights."""

GRADIENT_SHIFT = "gradient_shift/"
"""Prefix of plain numbers about gradients of which many have changed lastingly at once; see gradient_shift."""

OFTEN = "_often"
"""Ends the name of a change of an input that is seen in some of the latest steps only."""

OPTIMIZER_IDLE = "optimizer_idle/"
"""Prefix of plain numbers: the last step in which the optimizer of a part made an update, once it is overdue."""

LOSS_MISUSE = "loss_misuse/"
"""A loss function whose inputs do not fit it: the number says how far, or is 1."""
GUESS_CLASSES, GUESS_SQUARES = "guess_classes", "guess_squares"
"""Plain numbers of the first steps: the classes that a loss chooses from, and the mean square of what it compares with,
for a loss that is nothing but the mean over them."""

WEIGHTS_STILL = "weights_still"
"""Plain number: updates in a row that changed none of the elements that were looked at."""

GRADIENT_NORM = "gradient_norm"
"""The plain number that an overhead budget keeps at every step: the norm of all gradients, before clipping."""

GRADIENT_SKETCH, LOCAL_SKETCH = "gradient_sketch", "gradient_local"
"""The quantity of random projections of gradients, and the prefix of its targets."""
GRADIENT_COSINE = "gradient_cosine"
"""The plain number: the cosine between this step's gradient and that of the step before, from their projections."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED = (ROLLUPS, SNAPSHOTS, ATTACHMENTS)
"""Folders beside those of quantities."""


def is_quantity(name: str) -> bool:
    """Whether this is a valid name for a quantity, which is used for folders, files and SQL views."""
    return _NAME.fullmatch(name) is not None and name not in _RESERVED


def _probe_name(part: object) -> str | None:
    quantity = getattr(part, "quantity", None)
    if not isinstance(part, type) or not isinstance(quantity, str) or not hasattr(part, "attach"):
        return None
    if not is_quantity(quantity):
        raise TypeError(f"invalid name of a quantity {quantity!r}: use letters, digits and _ only, at most 64")
    return f"{quantity}:{part.__name__}" if quantity == SCALAR else quantity


PROBES: Registry[Any] = Registry("quantities", "vario.probes", _probe_name)
"""Probes by quantity; those of plain numbers as `scalar:<class>`."""


def watchable() -> list[str]:
    """Return all quantities a Monitor can watch."""
    return [found.name for found in PROBES if found.part.quantity != SCALAR]


def first_steps(quantity: str) -> int:
    """Return how many steps from the first on a quantity is watched in, whatever its default interval."""
    return int(getattr(PROBES.get(quantity, "every"), "first_steps", 0))


def default_every(quantity: str) -> int:
    """Return the default interval of a quantity: every step for cheap ones, more for expensive ones."""
    return int(getattr(PROBES.get(quantity, "every"), "every", 1))
