"""Attention again in float64, from what its functions were called with: for tests of attention that is found."""

import math

import numpy as np
import torch

from watching import check, watch

WHATS = ("entropy", "softmax_max", "max_logit", "head_entropy")
functional = torch.nn.functional


def oracle(query, key, *, scale=None, mask=None, causal=False, lower_right=False, softcap=None):
    """The rows of a sample of queries, from tensors b,h,s,d and a mask that is boolean or is added."""
    q, k = query.detach().double().numpy(), key.detach().double().numpy()
    row_stride, batch_stride = math.ceil(q.shape[2] / 64), math.ceil(q.shape[0] / 8)
    k = np.broadcast_to(k, (q.shape[0], *k.shape[1:])).repeat(q.shape[1] // k.shape[1], axis=1)
    scores = q @ k.swapaxes(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = np.tanh(scores / softcap) * softcap
    seen = np.ones(scores.shape, dtype=bool)
    if mask is not None:
        mask = mask.detach()[..., : k.shape[2]]
        if mask.dtype is torch.bool:
            seen &= np.broadcast_to(mask.numpy(), seen.shape)
        else:
            bias = np.broadcast_to(mask.double().numpy(), seen.shape)
            seen &= bias > -9000
            scores = scores + np.where(seen, bias, 0)
    if causal:
        offset = k.shape[2] - q.shape[2] if lower_right else 0
        seen &= np.tri(q.shape[2], k.shape[2], offset, dtype=bool)
    picked = np.s_[::batch_stride, :, row_stride - 1 :: row_stride]
    scores, seen = np.where(seen, scores, -np.inf)[picked], seen[picked]
    num_seen = seen.sum(-1)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        p = weights / weights.sum(-1, keepdims=True)
        entropy = -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum(-1)
        share = np.where(num_seen > 1, entropy / np.log(np.maximum(num_seen, 2)), np.nan)
        found = {"entropy": entropy, "softmax_max": p.max(-1), "max_logit": scores.max(-1)}
        found = {what: np.where(num_seen > 0, value, value[num_seen > 0].mean()) for what, value in found.items()}
        return {**found, "head_entropy": np.nanmean(share, axis=(0, 2))}


class Calls:
    """Keeps what functions of attention are called with; stands under whatever a Monitor puts on top."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.seen = []

    def keep(self, owner, name):
        original = getattr(owner, name)

        def kept(*args, **kwargs):
            self.seen.append(([arg.detach().clone() if torch.is_tensor(arg) else arg for arg in args], kwargs))
            return original(*args, **kwargs)

        self.monkeypatch.setattr(owner, name, kept)
        return self


def check_target(recorded, step, target, expected, micro_step=0):
    for what, values in expected.items():
        row = recorded.pop((step, "attention", micro_step, f"{target}:{what}"))
        check(row, torch.from_numpy(np.asarray(values)), rtol=2e-4)


class Training:
    """A few steps of any model on its loss; every second pass evaluates."""

    def __init__(self, model, loss, lr=0.1):
        self.model = self.called = model
        self.loss = loss
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        self.losses = []

    def watch(self, **options):
        return watch(self.called, self.optimizer, ["attention"], **options)

    def run(self, steps=1, micro_steps=1):
        for _ in range(steps):
            for micro_step in range(micro_steps):
                loss = self.loss(self.called, 10 * len(self.losses) + micro_step)
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
            with torch.no_grad():
                self.loss(self.called, 99)
