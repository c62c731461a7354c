"""What the training script passes: chunks of a model and process groups, with vario's names."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vario.backends import launchers
from vario.backends.frameworks import FRAMEWORKS
from vario.backends.protocols.msprobe_wishes import MsprobeSide
from vario.compat.msprobe.alarms import Place
from vario.compat.msprobe.names import Names
from vario.core.errors import ConfigError, ModelError
from vario.core.records import Share
from vario.core.text import suggestion

log = logging.getLogger("vario")


def place_of(process_group: Any) -> tuple[Place, int]:
    """Return the position of this process in the job, and the number of processes."""
    # A script has imported its framework by now. A folder of that name in the working directory has no `nn`.
    sides = [
        found.part.msprobe_side()
        for found in FRAMEWORKS
        if hasattr(found.part, "msprobe_side") and f"{found.part.imported_as}.nn" in sys.modules  # type: ignore[attr-defined]
    ]
    if not sides:
        rank, world_size = launchers.rank_and_size(os.environ)
        return Place(rank, 0, (rank,)), world_size
    place = max((side.place(process_group) for side in sides), key=lambda place: place.world_size)
    return Place(place.rank, place.rank_in_group, place.ranks_of_group), place.world_size


def side_of(chunks: Sequence[Any], optimizer: Any) -> MsprobeSide:
    """Return the framework's side of these models; raises ModelError for what is neither a model nor an optimizer."""
    if optimizer is None:
        raise ModelError("set_monitor: optimizer: expected the optimizer that updates the model")
    frameworks = [found.part for found in FRAMEWORKS if hasattr(found.part, "msprobe_side")]
    own = next((framework for framework in frameworks if any(framework.owns(chunk) for chunk in chunks)), None)
    if own is None:
        expected = " or ".join(sorted(framework.expects for framework in frameworks))
        kind = type(chunks[0]).__name__ if chunks else "an empty list"
        raise ModelError(f"set_monitor: model: expected {expected}, or a list of them, got {kind}")
    side: MsprobeSide = own.msprobe_side()
    side.check(chunks, optimizer)
    return side


def is_optimizer(value: Any) -> bool:
    """Whether an argument may be an optimizer, rather than a number of steps."""
    return hasattr(value, "step") or hasattr(value, "parameters")


def named_by_config(names: Names, hook: str, wanted: Sequence[str]) -> list[str]:
    """The modules an entry of `l2_targets` names, by vario's names; an empty `linear_hook` names all."""
    if not wanted and hook == "linear_hook":
        return list(names.modules)
    spelled = {spelling: name for name in names.modules for spelling in names.spellings(name)}
    for name in wanted:
        if name not in spelled:
            near = suggestion(name, names.modules.values())
            log.warning("l2_targets: %s: '%s' is not a module of this model. %s", hook, name, near)
    return [spelled[name] for name in wanted if name in spelled]


def duplicates(names: Names, side: MsprobeSide, dp_group: Any, tp_group: Any, shares: Mapping[str, Share]) -> set[str]:
    """Return the parameters whose reduced gradients another rank of the group writes; not those it has another shard
    of."""
    found: set[str] = set()
    if dp_group is not None:
        rank, first = side.rank_and_first(dp_group)
        if rank != 0:
            is_there = {
                name: not _is_a_piece(shares[name]) or first in shares[name].replicas for name in names.parameters
            }
            found |= {name for name in names.parameters if is_there[name]}
    if tp_group is not None and side.rank_and_first(tp_group)[0] != 0:
        tensors = names.tensors.items()
        found |= {name for name, tensor in tensors if not getattr(tensor, "tensor_model_parallel", False)}
    return found


def _is_a_piece(share: Share) -> bool:
    return share.box is not None or share.range is not None


def check_at_least(name: str, value: Any, least: int) -> None:
    """Raise ConfigError for anything but a whole number of at least that."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"set_monitor: {name}: expected a whole number of at least {least}, got {value!r}")
