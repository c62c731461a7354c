"""What the training script hands over: chunks of a model and process groups, in vario's names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from vario.compat.msprobe.alarms import Place
from vario.compat.msprobe.names import Names, keyed
from vario.core.errors import ConfigError, ModelError
from vario.core.records import Share
from vario.core.text import suggestion

log = logging.getLogger("vario")


def place_of(process_group: Any) -> tuple[Place, int]:
    """Where in the job this process stands, and how many processes the job has."""
    from vario.backends.torch import process

    rank, world_size = process.rank_and_world_size()
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return Place(rank, 0, (rank,)), world_size
    group = process_group if isinstance(process_group, dist.ProcessGroup) else dist.group.WORLD
    assert group is not None
    return Place(rank, dist.get_group_rank(group, rank), tuple(dist.get_process_group_ranks(group))), world_size


def modules_of(chunks: Sequence[Any]) -> dict[str, Any]:
    """All modules by vario's names."""
    from vario.backends.torch import naming

    return dict(naming.all_modules(keyed(chunks)))


def named_by_config(names: Names, hook: str, wanted: Sequence[str]) -> list[str]:
    """The modules an entry of `l2_targets` names, by vario's names; an empty `linear_hook` names all."""
    if not wanted and hook == "linear_hook":
        return list(names.modules)
    spelled = {spelling: name for name in names.modules for spelling in names.spellings(name)}
    for name in wanted:
        if name not in spelled:
            near = suggestion(name, names.modules.values())
            log.warning("l2_targets: %s: '%s' is no module of this model. %s", hook, name, near)
    return [spelled[name] for name in wanted if name in spelled]


def duplicates(names: Names, dp_group: Any, tp_group: Any, shares: Mapping[str, Share]) -> set[str]:
    """Parameters whose reduced gradients another rank of the group writes; not those of which it has another piece."""
    if dp_group is None and tp_group is None:
        return set()
    import torch.distributed as dist

    found: set[str] = set()
    if dp_group is not None and dist.get_rank(group=dp_group) != 0:
        first = dist.get_global_rank(dp_group, 0)
        found |= {name for name in names.parameters if not _is_a_piece(shares[name]) or first in shares[name].replicas}
    if tp_group is not None and dist.get_rank(group=tp_group) != 0:
        tensors = names.tensors.items()
        found |= {name for name, tensor in tensors if not getattr(tensor, "tensor_model_parallel", False)}
    return found


def _is_a_piece(share: Share) -> bool:
    return share.box is not None or share.range is not None


def check_arguments(chunks: Sequence[Any], optimizer: Any) -> None:
    """Refuse what is no model, or no optimizer, by its name."""
    import torch

    from vario.backends.torch.engines import optimizers

    if optimizer is None:
        raise ModelError("set_monitor: optimizer: needs the one that updates the model")
    for chunk in chunks:
        if not isinstance(chunk, torch.nn.Module):
            kind = type(chunk).__name__
            raise ModelError(f"set_monitor: model: expected a torch.nn.Module, or a list of them, got {kind}")
    try:
        optimizers.innermost(optimizer)
    except ModelError:
        kind = type(optimizer).__name__
        raise ModelError(f"set_monitor: optimizer: expected a torch.optim.Optimizer, got {kind}") from None


def check_at_least(name: str, value: Any, least: int) -> None:
    """Refuse what is no whole number of at least that."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"set_monitor: {name}: expected a whole number of at least {least}, got {value!r}")
