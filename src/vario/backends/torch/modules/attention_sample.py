"""One call of attention, wherever it was found, and the numbers of a sample of its queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from vario.backends.torch.modules.attention import COLUMNS, blocks, head_entropy, head_parts, softmax_rows
from vario.backends.torch.reduce.tensors import aside, local_part

MAX_QUERIES = 64
MAX_BATCHES = 8
_HIDES = -9e3
"""An additive mask below this hides a key; -10,000 is common, which bfloat16 rounds to -9,984."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The arguments of one call of attention."""

    query: torch.Tensor
    """(..., heads, queries, dim)"""
    key: torch.Tensor
    """(..., heads, keys, dim), with as many heads or a divisor of that."""
    scale: float | torch.Tensor | None = None
    """What products are multiplied by; None: 1 / sqrt(dim)."""
    mask: torch.Tensor | None = None
    """Says which keys are seen, or is added to the logits; broadcast over (..., heads, queries, keys)."""
    bias: torch.Tensor | None = None
    """Added to the logits."""
    seen_keys: torch.Tensor | None = None
    """(batch, keys): zero for padding."""
    last_seen: int | None = None
    """If set, later keys are hidden: the first query sees the keys up to this one, the next query one more."""
    window: int | None = None
    """If set, only this many of the keys up to that one are seen."""
    softcap: float | None = None
    """Logits are limited to plus and minus this."""


def sampled_rows(
    call: AttentionCall, block_elements: int = 1 << 22, by_head: bool = False
) -> dict[str, torch.Tensor] | None:
    """Return the numbers of `attention_rows` for at most 64 queries per head in at most 8 batches, evenly spread.

    A query that sees no key has none and takes the mean of the others, because leaving it out would wait for the
    device. None if the tensors cannot be read, or do not have the shapes of attention.
    """
    query, key = local_part(call.query), local_part(call.key)
    if query is None or key is None or not query.is_floating_point() or not query.numel() or not key.numel():
        return None
    with aside(query.device):
        sample = _Sample.of(query, key, call)
        return None if sample is None else sample.rows(call, block_elements, by_head)


@dataclass(frozen=True, eq=False)
class _Sample:
    query: torch.Tensor
    """(batch, key head, query head of it, query, dim)"""
    key: torch.Tensor
    """(batch, key head, key, dim)"""
    bias: torch.Tensor | None
    """Broadcast over (batch, head, query, key)."""
    hidden: torch.Tensor | None
    may_see_nothing: bool

    @staticmethod
    def of(query: torch.Tensor, key: torch.Tensor, call: AttentionCall) -> _Sample | None:
        """Return the sampled queries, their keys and which of them are seen."""
        ndim, num_queries, num_keys = query.ndim, query.shape[-2], key.shape[-2]
        if key.ndim != ndim or key.shape[-1] != query.shape[-1]:
            return None
        row_stride = -(-num_queries // MAX_QUERIES)
        rows = slice(row_stride - 1, None, row_stride)
        query = _by_four(query[..., rows, :], ndim)
        batch, num_heads = query.shape[:2]
        key = _by_four(key, ndim)
        if num_heads % key.shape[1] or key.shape[0] not in (1, batch):
            return None
        batches = slice(None, None, -(-batch // MAX_BATCHES))
        query = query[batches]
        key = key[batches].expand(len(query), -1, -1, -1)
        limits = _Limits((batch, num_heads, num_queries, num_keys), ndim, batches, rows, query.device)
        for added in (call.mask, call.bias):
            if added is not None and not limits.add(added):
                return None
        if call.seen_keys is not None and not limits.hide_padding(call.seen_keys):
            return None
        if call.last_seen is not None:
            limits.hide_later(call.last_seen, call.window)
        grouped = query.unflatten(1, (key.shape[1], -1))
        may_see_nothing = limits.may_see_nothing or (call.last_seen or 0) < 0
        return _Sample(grouped, key, limits.bias, limits.hidden, may_see_nothing)

    def rows(self, call: AttentionCall, block_elements: int, by_head: bool) -> dict[str, torch.Tensor]:
        """Return the numbers of all sampled queries."""
        batch, num_key_heads, per_key_head, num_queries, dim = self.query.shape
        num_keys = self.key.shape[2]
        shape = (batch, num_key_heads * per_key_head, num_queries)
        rows = torch.empty((len(COLUMNS), *shape), dtype=torch.float32, device=self.query.device)
        for batches, key_heads, queries in blocks(self.query, num_keys, block_elements):
            heads = slice(key_heads.start * per_key_head, key_heads.stop * per_key_head)
            part = self.query[batches, key_heads, :, queries].float()
            scores = part.flatten(2, 3) @ self.key[batches, key_heads].float().transpose(2, 3)
            scores = scores.unflatten(2, (per_key_head, -1)).flatten(1, 2)
            scores = scores.mul_(dim**-0.5 if call.scale is None else call.scale)
            if call.softcap is not None:
                scores = scores.div_(call.softcap).tanh_().mul_(call.softcap)
            if self.bias is not None:
                scores = scores.add_(_cut(self.bias, batches, heads, queries))
            hidden = None if self.hidden is None else _cut(self.hidden, batches, heads, queries)
            rows[:, batches, heads, queries] = softmax_rows(scores, hidden)
        if self.hidden is None:
            num_seen = torch.full((1, 1, 1), num_keys, device=rows.device)
        else:
            num_seen = num_keys - self.hidden.expand(-1, -1, -1, num_keys).sum(-1)
        if self.may_see_nothing:
            rows = _filled(rows, (num_seen > 0).expand(shape))
        found = dict(zip(COLUMNS, rows.flatten(1), strict=True))
        if num_keys > 1:
            found["head_entropy"] = head_entropy(rows[0], num_seen)
        if by_head:
            found |= head_parts(found.get("head_entropy"), rows[2].amax((0, 2)))
        return found


class _Limits:
    """Which keys the sampled queries see, combined from all masks."""

    def __init__(
        self, shape: tuple[int, int, int, int], ndim: int, batches: slice, rows: slice, device: torch.device
    ) -> None:
        self._batch, self._num_heads, self._num_queries, self._num_keys = shape
        self._ndim = ndim
        self._batches = batches
        self._rows = rows
        self._device = device
        self.bias: torch.Tensor | None = None
        self.hidden: torch.Tensor | None = None
        self.may_see_nothing = False

    def add(self, mask: torch.Tensor) -> bool:
        """Add a mask, boolean or additive; return whether it fits."""
        part = local_part(mask)
        if part is None or part.device != self._device or part.ndim > self._ndim:
            return False
        part = _by_four(part.reshape((1,) * (self._ndim - part.ndim) + part.shape), self._ndim)
        # Some models make a mask for more keys than there are.
        part = part[..., : self._num_keys]
        whole = (self._batch, self._num_heads, self._num_queries, self._num_keys)
        if any(size not in (1, full) for size, full in zip(part.shape, whole, strict=True)):
            return False
        part = part[self._batches] if part.shape[0] > 1 else part
        part = part[:, :, self._rows] if part.shape[2] > 1 else part
        self.may_see_nothing = True
        if part.dtype is torch.bool:
            self._hide(~part)
            return True
        hides = part <= _HIDES
        self._hide(hides)
        part = part.float().masked_fill(hides, 0.0)
        self.bias = part if self.bias is None else self.bias + part
        return True

    def hide_padding(self, seen_keys: torch.Tensor) -> bool:
        """Add a mask over (batch, keys); return whether it fits."""
        part = local_part(seen_keys)
        if part is None or part.device != self._device or part.shape != (self._batch, self._num_keys):
            return False
        self.may_see_nothing = True
        self._hide((part[self._batches] == 0)[:, None, None])
        return True

    def hide_later(self, last_seen: int, window: int | None) -> None:
        """Hide the keys after each query, and with a window those long before it."""
        queries = torch.arange(self._num_queries, device=self._device)[self._rows, None] + last_seen
        keys = torch.arange(self._num_keys, device=self._device)
        hidden = keys > queries
        if window is not None:
            hidden = hidden | (keys <= queries - window)
        self._hide(hidden[None, None])

    def _hide(self, hidden: torch.Tensor) -> None:
        self.hidden = hidden if self.hidden is None else self.hidden | hidden


def _by_four(tensor: torch.Tensor, ndim: int) -> torch.Tensor:
    """Reshape to (batch, head, _, _): one head if there is no axis for it, several batch axes merged into one."""
    if ndim == 2:
        return tensor[None, None]
    if ndim == 3:
        return tensor[:, None]
    return tensor if ndim == 4 else tensor.flatten(0, -4)


def _cut(tensor: torch.Tensor, batches: slice, heads: slice, queries: slice) -> torch.Tensor:
    cuts = (batches, heads, queries)
    return tensor[tuple(cut if size > 1 else slice(None) for size, cut in zip(tensor.shape, cuts, strict=False))]


def _filled(rows: torch.Tensor, sees: torch.Tensor) -> torch.Tensor:
    """Give rows of queries that see nothing the mean of the others; NaN from the model stays."""
    counts = sees & rows.isfinite()
    means = torch.where(counts, rows, 0.0).flatten(1).sum(1) / counts.flatten(1).sum(1).clamp(min=1)
    return torch.where(sees, rows, means[:, None, None, None])
