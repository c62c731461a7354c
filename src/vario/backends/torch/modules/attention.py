"""Entropy, largest probability and largest logit of each row of attention's softmax."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from vario.backends.torch.reduce.tensors import aside, local_part, why_without_numbers
from vario.config import ATTENTION_ORDERS

COLUMNS = ("entropy", "softmax_max", "max_logit")


def attention_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    order: str,
    *,
    causal: bool,
    first_only: bool = False,
    by_head: bool = False,
    block_elements: int = 1 << 22,
) -> dict[str, torch.Tensor]:
    """Return numbers of softmax(q k^T / sqrt(d)), one per (batch, head, query), in that order, without device syncs.

    Also `head_entropy`, one per head: the mean entropy divided by its maximum, over queries that see several keys.
    `order` says which axis is which; fewer key heads than query heads are shared by groups of them. With `causal` the
    last query sees all keys, and queries that see none are left out. `first_only` uses batch 0 and head 0 only. At most
    about `block_elements` scores exist at a time. `by_head` adds rows of
    each head. A row with a NaN or an infinite logit has a NaN entropy.
    """
    query, key = _by_head(query, key, order)
    if first_only:
        query, key = query[:1, :1, :1], key[:1, :1]
    batch, num_key_heads, per_key_head, num_queries, _ = query.shape
    num_keys = key.shape[2]
    # Aligned at the end, as in flash attention: with fewer keys than queries the first queries see nothing.
    first = max(0, num_queries - num_keys) if causal or num_keys == 0 else 0
    shape = (len(COLUMNS), batch, num_key_heads, per_key_head, num_queries - first)
    with aside(query.device):
        rows = torch.empty(shape, dtype=torch.float32, device=query.device)
        for batches, heads, queries in blocks(query[..., first:, :], num_keys, block_elements):
            end = num_keys - num_queries + first + queries.stop if causal else num_keys
            part = query[batches, heads, :, first + queries.start : first + queries.stop]
            rows[:, batches, heads, :, queries] = _block_rows(part, key[batches, heads, :end], causal)
        found = dict(zip(COLUMNS, rows.flatten(1), strict=True))
        if num_keys > 1 and rows[0].numel():
            num_seen = torch.full((num_queries - first,), num_keys, device=query.device)
            if causal:
                num_seen = torch.arange(num_keys - num_queries + first, num_keys, device=query.device) + 1
            found["head_entropy"] = head_entropy(rows[0].flatten(1, 2), num_seen)
        if by_head and rows[0].numel():
            found |= head_parts(found.get("head_entropy"), rows[2].amax((0, 3)).flatten())
    return found


def head_parts(entropy: torch.Tensor | None, max_logit: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a row with one element for each head: `head_entropy.0`, ... and `max_logit.0`, ..."""
    named = {"head_entropy": entropy, "max_logit": max_logit}
    heads = {what: numbers.split(1) for what, numbers in named.items() if numbers is not None}
    return {f"{what}.{head}": part for what, parts in heads.items() for head, part in enumerate(parts)}


def head_entropy(entropy: torch.Tensor, num_seen: torch.Tensor) -> torch.Tensor:
    """Return per head the mean of entropies divided by ln(keys the query sees); queries with one key are left out.

    A head whose queries all see a single key counts as having no preference: 1.
    """
    has_choice = (num_seen > 1).expand(entropy.shape)
    share = torch.where(has_choice, entropy / num_seen.clamp(min=2).log(), 0.0)
    number = has_choice.sum((0, 2))
    return torch.where(number > 0, share.sum((0, 2)) / number.clamp(min=1), 1.0)


def _by_head(query: torch.Tensor, key: torch.Tensor, order: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return queries as (batch, key head, query head of it, query, dim) and keys as (batch, key head, key, dim)."""
    axes = order.replace(" ", "").split(",")
    if ",".join(axes) not in ATTENTION_ORDERS:
        raise ValueError(f"order: unknown '{order}'. Known: {'; '.join(ATTENTION_ORDERS)}")
    dense = []
    for what, tensor in (("queries", query), ("keys", key)):
        if not isinstance(tensor, torch.Tensor) or tensor.ndim != 4:
            found = f"{tuple(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ValueError(f"expected {what} with four dimensions, {order}; got {found}")
        part = local_part(tensor)
        if part is None:
            raise ValueError(f"the {what} cannot be read: {why_without_numbers(tensor)}")
        dense.append(part.permute([axes.index(axis) for axis in "bhsd"]))
    queries, keys = dense
    fits = queries.shape[0] == keys.shape[0] and queries.shape[3] == keys.shape[3]
    if not fits or keys.shape[1] == 0 or queries.shape[1] % keys.shape[1]:
        raise ValueError(
            f"queries of shape {tuple(query.shape)} and keys of shape {tuple(key.shape)} do not match in the "
            f"order {order}: batch and d must match, and the heads divide. Other orders: {'; '.join(ATTENTION_ORDERS)}"
        )
    return queries.unflatten(1, (keys.shape[1], -1)), keys


def blocks(query: torch.Tensor, num_keys: int, block_elements: int) -> Iterator[tuple[slice, slice, slice]]:
    """Yield slices of batches, key heads and queries with about `block_elements` scores."""
    batch, num_key_heads, per_key_head, num_queries, _ = query.shape
    num_rows = block_elements // max(1, num_keys)
    for batches in _slices(batch, num_rows // max(1, num_key_heads * per_key_head * num_queries)):
        for heads in _slices(num_key_heads, num_rows // max(1, per_key_head * num_queries)):
            for queries in _slices(num_queries, num_rows // per_key_head):
                yield batches, heads, queries


def _slices(length: int, size: int) -> Iterator[slice]:
    size = max(1, size)
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def _block_rows(query: torch.Tensor, key: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return the numbers of one block; with `causal` its last query sees all these keys."""
    num_queries, num_keys = query.shape[3], key.shape[2]
    # Divided by sqrt(d) afterwards: 16-bit inputs stay exact even if float32 products are rounded to TF32.
    scores = query.float().flatten(2, 3) @ key.float().transpose(2, 3)
    scores = scores.mul_(query.shape[4] ** -0.5).unflatten(2, (-1, num_queries))
    later = None
    if causal:
        later = torch.ones((num_queries, num_keys), dtype=torch.bool, device=scores.device)
        later = later.triu_(num_keys - num_queries + 1)
    return softmax_rows(scores, later)


def softmax_rows(scores: torch.Tensor, hidden: torch.Tensor | None) -> torch.Tensor:
    """Return entropy, largest probability and logit over the last axis, where not hidden; overwrites the scores."""
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    max_logit = scores.amax(-1)
    shifted = scores.sub_(max_logit.unsqueeze(-1))
    weights = shifted.exp()
    total = weights.sum(-1)
    if hidden is not None:
        # Masked elements add nothing to the sum below, while 0 times a -inf from the model is NaN.
        shifted.masked_fill_(hidden, 0.0)
    entropy = total.log() - weights.mul_(shifted).sum(-1) / total
    return torch.stack([entropy, total.reciprocal(), max_logit])
