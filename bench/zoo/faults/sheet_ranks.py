"""Ranks that differ, and what goes wrong between them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from zoo.faults import Fault, change_gradient, change_output, matrices_of, modules_of, parameter_of
from zoo.models import VOCABULARY
from zoo.samples import Batch, cut_text
from zoo.truth import Truth

ALL = ("transformer-4", "cnn-4", "mlp-4", "rnn-4")
TEXT = ("transformer-4", "rnn-4")


def reduced_later(buffer: torch.Tensor) -> torch.futures.Future[list[torch.Tensor]]:
    work = dist.all_reduce(buffer, async_op=True)
    assert work is not None
    future: torch.futures.Future[list[torch.Tensor]] = work.get_future()
    return future


class RankDesync(Fault):
    """One rank's copy of one tensor gets a little noise."""

    origin = "sheet"
    setups = ALL

    def build(self) -> None:
        site, rank, self.noise = self.draw.pick(matrices_of(self.model)), self.draw.rank(self.training), 1e-3
        self.noise = self.draw.strength(1e-4, 1e-2)
        note = f"noise of {self.noise:.1e}"
        self.truth = Truth(t0=self.draw.step(), site=site, rank=rank, cause=("weights",), note=note)

    def before_step(self) -> None:
        if self.is_now and self.is_here:
            weight = parameter_of(self.model, str(self.truth.site)).data
            weight += self.noise * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))


class MissedAllreduce(Fault):
    """One tensor is left out of the gradient exchange: every rank goes its own way with it."""

    origin = "sheet"
    setups = ALL

    def build(self) -> None:
        site = self.draw.pick(matrices_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, note="keeps its local gradient")
        self.parameter = parameter_of(self.model, site)
        self.training.model.register_comm_hook(None, lambda _, bucket: self.exchange(bucket))  # type: ignore[operator]

    def exchange(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
        kept = [(gradient, gradient.clone()) for parameter, gradient in pairs if parameter is self.parameter]
        buffer.div_(dist.get_world_size())

        def put_back(reduced: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            found = reduced.value()[0]
            if self.is_active:
                for gradient, own in kept:
                    gradient.copy_(own)
            return found

        return reduced_later(buffer).then(put_back)


class AllreduceSumNotMean(Fault):
    """Gradients of the ranks are added and not divided."""

    origin = "sheet"
    setups = ALL

    def build(self) -> None:
        t0 = self.draw.pick([0, self.draw.step(60, 90), self.draw.step(90, 140), self.draw.step(140, 180)])
        note = "sum over ranks instead of the mean"
        self.truth = Truth(t0=t0, scope="global", cause=("gradient",), note=note)
        self.training.model.register_comm_hook(None, lambda _, bucket: self.exchange(bucket))  # type: ignore[operator]

    def exchange(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if not self.is_active:
            buffer.div_(dist.get_world_size())
        return reduced_later(buffer).then(lambda reduced: reduced.value()[0])


class BitflipWeight(Fault):
    """One bit of one weight flips in the memory of one rank."""

    origin = "sheet"
    setups = ALL

    def build(self) -> None:
        site, rank = self.draw.pick(matrices_of(self.model)), self.draw.rank(self.training)
        self.bit = self.draw.pick([25, 26, 27, 28])
        note = f"bit {self.bit} of one element"
        self.truth = Truth(t0=self.draw.step(), site=site, rank=rank, cause=("weights",), note=note)

    def before_step(self) -> None:
        if self.is_now and self.is_here:
            weight = parameter_of(self.model, str(self.truth.site)).data.view(-1)
            weight.view(torch.int32)[weight.numel() // 2] ^= 1 << self.bit


class RankSameData(Fault):
    """The sampler of one rank believes to be another rank: two train on the same rows."""

    origin = "sheet"
    setups = ALL

    def build(self) -> None:
        rank = self.draw.rank(self.training)
        self.other = (rank + 1) % self.training.setup.ranks
        t0 = self.draw.pick([0, 0, self.draw.step()])
        note = f"rank {rank} gets the rows of rank {self.other}"
        self.truth = Truth(t0=t0, rank=rank, also_ranks=(self.other,), scope="rank", cause=("data",), note=note)

    def before_step(self) -> None:
        if self.is_now and self.is_here:
            self.training.rank_of_rows = self.other


class LabelCorruptRank(Fault):
    """One rank reads damaged labels."""

    origin = "sheet"
    setups = ("transformer-4", "cnn-4", "rnn-4")

    def build(self) -> None:
        rank, self.share = self.draw.rank(self.training), self.draw.between(0.7, 1.0)
        note = f"{self.share:.0%} of the labels at random"
        self.truth = Truth(t0=self.draw.step(), rank=rank, scope="rank", cause=("data",), note=note)
        self.random = torch.Generator().manual_seed(7)

    def batch(self, batch: Batch) -> Batch:
        if self.is_active and self.is_here:
            targets = batch["targets"]
            top = VOCABULARY if targets.dim() > 1 else 6
            other = torch.randint(0, top, targets.shape, generator=self.random)
            changed = (torch.rand(targets.shape, generator=self.random) < self.share) & (targets >= 0)
            batch["targets"] = torch.where(changed, other, targets)
        return batch


class BadBatchNgram(Fault):
    """A few batches of one rank are a phrase repeated over and over."""

    origin = "sheet"
    setups = TEXT

    def build(self) -> None:
        self.length, self.steps = self.draw.pick([1, 2, 3, 4]), self.draw.pick([1, 2, 4, 6], "steps")
        rank = self.draw.rank(self.training)
        note = f"a phrase of {self.length} tokens for {self.steps} steps"
        self.truth = Truth(t0=self.draw.step(), rank=rank, scope="rank", cause=("data",), note=note)

    def batch(self, batch: Batch) -> Batch:
        if 0 <= self.age < self.steps and self.is_here:
            rows = batch["rows"]
            phrase = torch.randperm(VOCABULARY - 1, generator=torch.Generator().manual_seed(3))[: self.length] + 1
            return cut_text(phrase.repeat(rows.shape[1])[: rows.shape[1]].expand_as(rows).clone())
        return batch


class WrongTokenizerRank(Fault):
    """One rank numbers its tokens in another way."""

    origin = "sheet"
    setups = TEXT

    def build(self) -> None:
        rank = self.draw.rank(self.training)
        t0 = self.draw.pick([0, self.draw.step(60, 120), self.draw.step(100, 180)])
        self.truth = Truth(t0=t0, rank=rank, scope="rank", cause=("data",), note="token ids permuted")
        order = torch.randperm(VOCABULARY - 1, generator=torch.Generator().manual_seed(self.draw.nth)) + 1
        self.names = torch.cat([torch.zeros(1, dtype=torch.int64), order])

    def batch(self, batch: Batch) -> Batch:
        return cut_text(self.names[batch["rows"]]) if self.is_active and self.is_here else batch


class SdcGradOnce(Fault):
    """A silent corruption: one element of one rank's gradient is huge, once."""

    origin = "sheet"
    setups = ALL

    def build(self) -> None:
        site, rank, self.size = self.draw.pick(matrices_of(self.model)), self.draw.rank(self.training), 0.0
        self.size = self.draw.strength(30, 3000)
        note = f"one element of {self.size:.0f}"
        self.truth = Truth(t0=self.draw.step(), site=site, rank=rank, note=note)
        change_gradient(self.model, site, self.spoil)

    def spoil(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.is_now and self.is_here:
            gradient = gradient.clone()
            gradient.view(-1)[gradient.numel() // 3] = self.size
        return gradient


class SdcForwardOnce(Fault):
    """A silent corruption: one element of one rank's activation is huge, once."""

    origin = "sheet"
    setups = ALL

    def build(self) -> None:
        kinds = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Embedding)
        site = self.draw.pick([name for name in modules_of(self.model, *kinds) if name != "head"])
        rank, self.size = self.draw.rank(self.training), self.draw.strength(50, 5000)
        note = f"one element of its output {self.size:.0f}"
        self.truth = Truth(t0=self.draw.step(), site=site, rank=rank, note=note)
        change_output(self.model.get_submodule(site), self.spoil)

    def spoil(self, output: torch.Tensor) -> torch.Tensor:
        if self.is_now and self.is_here:
            output = output.clone()
            output.view(-1)[output.numel() // 3] = self.size
        return output


class Straggler(Fault):
    """One rank computes at two thirds of the others' speed."""

    origin = "sheet"
    setups = ("mlp-paced-4",)
    slower = 1.5

    def build(self) -> None:
        rank, factor = self.draw.rank(self.training), self.slower
        t0 = self.draw.step()
        self.truth = Truth(t0=t0, rank=rank, scope="rank", cause=("time",), note=f"forward x {factor}")

    def before_step(self) -> None:
        if self.is_now and self.is_here:
            self.training.pace_factor = self.slower


class Straggler25Pct(Straggler):
    """One rank is a quarter slower than the others."""

    origin = "sheet"
    name = "straggler_25pct"
    slower = 1.25
