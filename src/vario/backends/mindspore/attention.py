"""Entropy, largest probability and largest logit of each row of attention's softmax, in MindSpore operations."""

from __future__ import annotations

import math
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore.graph.api import _no_grad

from vario.config import ATTENTION_ORDERS

_MOST_SCORES = 1 << 22
"""Scores that exist at a time."""


def attention_rows(
    query: Any, key: Any, order: str, causal: bool, first_only: bool = False, by_head: bool = False
) -> dict[str, Any]:
    """Return numbers of softmax(q k^T / sqrt(d)), one per (batch, head, query), and `head_entropy`, one per head.

    Fewer key heads than query heads are shared by groups of them. With `causal` the last query sees all keys, and
    queries that see none are left out. `first_only` uses batch 0 and head 0 only. `by_head` adds rows of each head.
    """
    with _no_grad():
        queries, keys = _by_head(query, key, order)
        if first_only:
            queries, keys = queries[:1, :1], keys[:1, :1]
        hidden = _later(queries.shape[2], keys.shape[2]) if causal else None
        return masked_rows(queries, keys, hidden, by_head=by_head)


def masked_rows(query: Any, key: Any, hidden: Any, bias: Any = None, by_head: bool = False) -> dict[str, Any]:
    """Return the same of tensors (batch, head, query or key, dim); `hidden`: (query, key), which are not seen."""
    batch, num_heads, num_queries, dim = query.shape
    num_keys = key.shape[2]
    first = 0 if hidden is None else int(hidden.all(1).sum())  # the first ones may see nothing
    shift = None if hidden is None else Tensor(np.where(hidden[first:], -np.inf, 0.0).astype(np.float32))
    at_once = max(1, _MOST_SCORES // max(1, num_heads * num_queries * num_keys))
    found = []
    with _no_grad():
        for start in range(0, batch, at_once):
            part = query[start : start + at_once, :, first:].astype(mindspore.float32)
            keys = key[start : start + at_once].astype(mindspore.float32)
            if keys.shape[1] != num_heads:
                keys = ops.repeat_elements(keys, num_heads // keys.shape[1], 1)
            scores = ops.matmul(part, keys.swapaxes(-1, -2)) * dim**-0.5
            scores = scores if bias is None else scores + bias
            found.append(_softmax_rows(scores if shift is None else scores + shift))
        rows = [ops.concat(parts) for parts in zip(*found, strict=True)]
        named = {name: row.reshape(-1) for name, row in zip(("entropy", "softmax_max", "max_logit"), rows, strict=True)}
        num_seen = np.full(num_queries, num_keys) if hidden is None else (~hidden).sum(1)
        if num_keys > 1 and num_queries > first:
            named["head_entropy"] = _head_entropy(rows[0], num_seen[first:])
        for head in range(num_heads if by_head and num_queries > first else 0):
            if "head_entropy" in named:
                named[f"head_entropy.{head}"] = named["head_entropy"][head : head + 1]
            named[f"max_logit.{head}"] = rows[2][:, head].max().reshape(1)
    return named


def _softmax_rows(scores: Any) -> tuple[Any, Any, Any]:
    largest = scores.max(axis=-1, keepdims=True)
    weights = ops.exp(scores - largest)
    total = weights.sum(-1)
    # A hidden key has the weight 0 and the logit -inf: it adds nothing.
    shifted = ops.maximum(scores - largest, Tensor(-1e30, mindspore.float32))
    entropy = ops.log(total) - (weights * shifted).sum(-1) / total
    return entropy, 1.0 / total, largest.squeeze(-1)


def _head_entropy(entropy: Any, num_seen: Any) -> Any:
    """Return per head the mean of entropies over ln(keys seen), without queries that see a single key."""
    share = np.where(num_seen > 1, 1.0 / np.log(np.maximum(num_seen, 2)), 0.0).astype(np.float32)
    number = int((num_seen > 1).sum()) * entropy.shape[0]
    if not number:
        return ops.ones((entropy.shape[1],), mindspore.float32)
    return (entropy * Tensor(share)).sum((0, 2)) / number


def _later(num_queries: int, num_keys: int) -> Any:
    return np.triu(np.ones((num_queries, num_keys), bool), num_keys - num_queries + 1)


def _by_head(query: Any, key: Any, order: str) -> tuple[Any, Any]:
    axes = order.replace(" ", "").split(",")
    if ",".join(axes) not in ATTENTION_ORDERS:
        raise ValueError(f"order: unknown '{order}'. Known: {'; '.join(ATTENTION_ORDERS)}")
    for what, tensor in (("queries", query), ("keys", key)):
        if not isinstance(tensor, Tensor) or len(tensor.shape) != 4:
            found = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ValueError(f"expected {what} with four dimensions, {order}; got {found}")
    places = [axes.index(axis) for axis in "bhsd"]
    queries, keys = (tensor.permute(*places) for tensor in (query, key))
    fits = queries.shape[0] == keys.shape[0] and queries.shape[3] == keys.shape[3]
    if not fits or not math.prod(keys.shape) or queries.shape[1] % keys.shape[1]:
        raise ValueError(
            f"queries of shape {tuple(query.shape)} and keys of shape {tuple(key.shape)} do not match in the order "
            f"{order}: batch and d must match, and the heads divide. Other orders: {'; '.join(ATTENTION_ORDERS)}"
        )
    return queries, keys
