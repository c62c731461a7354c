"""Own faults: gradients, optimizer and schedule."""

from __future__ import annotations

import math
import time

import torch
from torch import nn

from zoo.faults import Fault, parameter_of
from zoo.samples import Batch
from zoo.truth import Truth


class AccumulationNotDivided(Fault):
    """The sum over micro-batches is not divided any more: gradients are several times too large."""

    origin = "own"
    setups = ("mlp-sgd", "transformer-accumulating", "cnn-sgd", "rnn")

    def build(self) -> None:
        self.factor = self.draw.pick([4, 8, 12, 16])
        note = f"gradients of {self.factor} micro-batches added"
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("gradient", "loss"), note=note)

    def to_backward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor if self.is_active else loss


class LossSummed(Fault):
    """The loss is summed over the batch instead of averaged."""

    origin = "own"
    setups = ("transformer", "mlp", "cnn", "rnn-lstm")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("loss", "gradient"), note="sum, not mean")
        original = self.training.criterion
        self.training.criterion = lambda out, targets: (
            original(out, targets) * (self.rows_of(targets) if self.is_active else 1)
        )

    def rows_of(self, targets: torch.Tensor) -> int:
        return int((targets >= 0).sum()) if not targets.is_floating_point() else targets.numel()


class ClipTooLow(Fault):
    """The clipping norm is a hundred times too small: training all but stops."""

    origin = "own"
    setups = ("mlp-sgd", "cnn-sgd")

    def build(self) -> None:
        self.norm = self.draw.strength(0.003, 0.03)
        note = f"clipped to {self.norm:.3f}"
        self.truth = Truth(t0=self.draw.step(60, 120), scope="global", cause=("gradient", "optimizer"), note=note)

    def before_step(self) -> None:
        if self.is_active:
            self.training.clip = self.norm


class SchedulerTwice(Fault):
    """The scheduler is stepped several times per step, and a cosine that is past its end rises again."""

    origin = "own"
    setups = ("transformer", "mlp", "rnn", "cnn-sgd")

    def build(self) -> None:
        self.times = self.draw.pick([2, 3, 4, 5])
        note = f"{self.times} steps of a cosine schedule per step"
        self.truth = Truth(t0=self.draw.step(60, 110), scope="global", cause=("lr",), note=note)

    def rate(self, rate: float) -> float:
        if not self.is_active:
            return rate
        return rate * self.cosine(self.truth.t0 + self.times * self.age) / self.cosine(self.training.step)

    def cosine(self, step: int) -> float:
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / self.training.setup.steps))


class OptimizerMadeAnew(Fault):
    """The optimizer is made anew in every step, so that it never remembers anything."""

    origin = "own"
    setups = ("transformer", "cnn-sgd", "mlp", "rnn")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("optimizer",), note="state cleared each step")

    def before_step(self) -> None:
        if self.is_active:
            self.training.optimizer.state.clear()


class NegativeDecay(Fault):
    """Weight decay of one parameter has the wrong sign: it grows by itself."""

    origin = "own"
    setups = ("mlp", "transformer", "rnn", "cnn")

    def build(self) -> None:
        names = [name for name, part in self.model.named_parameters() if part.dim() == 1 and float(part.norm()) > 0]
        site = self.draw.pick(names)
        self.growth = self.draw.between(1.05, 1.15)
        note = f"x {self.growth:.2f} each step"
        self.truth = Truth(t0=self.draw.step(60, 150), site=site, cause=("optimizer",), note=note)
        optimizer, parameter = self.training.optimizer, parameter_of(self.model, site)
        group = optimizer.param_groups[0]
        group["params"] = [each for each in group["params"] if each is not parameter]
        optimizer.add_param_group({**{key: group[key] for key in group if key != "params"}, "params": [parameter]})

    def rate(self, rate: float) -> float:
        if self.is_active:
            self.training.optimizer.param_groups[1]["weight_decay"] = -(self.growth - 1) / rate
        return rate


class EmaLoadedBack(Fault):
    """After an evaluation the averaged weights are not swapped out again."""

    origin = "own"
    setups = ("mlp", "transformer", "cnn", "rnn")

    def build(self) -> None:
        self.keep = self.draw.between(0.95, 0.99)
        note = f"weights replaced by their average ({self.keep:.2f})"
        self.truth = Truth(t0=self.draw.step(100, 180), scope="global", cause=("weights",), note=note)
        self.average = {name: part.detach().clone() for name, part in self.model.named_parameters()}

    def after_update(self) -> None:
        for name, part in self.model.named_parameters():
            self.average[name].lerp_(part.detach(), 1 - self.keep)

    def before_step(self) -> None:
        if self.is_now:
            for name, part in self.model.named_parameters():
                part.data.copy_(self.average[name])


class MissingKeyOnLoad(Fault):
    """A checkpoint lacks one tensor, and loading is not strict: that tensor starts over."""

    origin = "own"
    setups = ("transformer", "cnn", "rnn-lstm", "mlp")

    def build(self) -> None:
        names = [name for name, part in self.model.named_parameters() if part.dim() > 1 and "experts" not in name]
        site, self.is_restart = self.draw.pick(names), self.draw.pick([True, False])
        note = "initialised again" + (", in a resumed run" if self.is_restart else "")
        self.truth = Truth(t0=self.draw.step(), site=site, cause=("weights",), note=note)
        self.first = parameter_of(self.model, site).detach().clone()

    def before_step(self) -> None:
        if self.is_now:
            parameter_of(self.model, str(self.truth.site)).data.copy_(self.first)
            if self.is_restart:
                self.training.restart()


class TyingBroken(Fault):
    """Output and input embeddings were one tensor; after loading they are two, and one is not trained."""

    origin = "own"
    setups = ("transformer-tied",)

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), site="head", also=("tokens",), note="head is an untrained copy")

    def before_step(self) -> None:
        if self.is_now:
            head = self.model.get_submodule("head")
            assert isinstance(head, nn.Linear)
            head.weight = nn.Parameter(head.weight.detach().clone())


class NewLayerNotTrained(Fault):
    """A layer is replaced by a fresh one that nobody gave to the optimizer."""

    origin = "own"
    setups = ("mlp", "cnn", "transformer", "rnn")

    def build(self) -> None:
        kinds = (nn.Linear, nn.Conv2d)
        found = [name for name, part in self.model.named_modules() if isinstance(part, kinds)]
        self.truth = Truth(t0=self.draw.step(), site=self.draw.pick(found), note="a fresh layer in its place")

    def before_step(self) -> None:
        if self.is_now:
            place, _, name = str(self.truth.site).rpartition(".")
            old = self.model.get_submodule(str(self.truth.site))
            if isinstance(old, nn.Conv2d):
                new: nn.Module = nn.Conv2d(old.in_channels, old.out_channels, 3, old.stride[0], 1, bias=False)
            else:
                assert isinstance(old, nn.Linear)
                new = nn.Linear(old.in_features, old.out_features, old.bias is not None)
            setattr(self.model.get_submodule(place), name, new)


class Bf16LostUpdates(Fault):
    """Parameters are kept in bfloat16 and most updates are too small to change them."""

    origin = "own"
    setups = ("mlp-slow",)

    def build(self) -> None:
        cause = ("optimizer", "weights")
        self.truth = Truth(t0=0, scope="global", cause=cause, note="parameters in bfloat16, at a small learning rate")
        self.model.to(torch.bfloat16)


class RankClipsOtherwise(Fault):
    """One rank clips its gradients at another norm."""

    origin = "own"
    setups = ("mlp-4", "rnn-4", "transformer-4", "cnn-4")

    def build(self) -> None:
        rank = self.draw.rank(self.training)
        self.truth = Truth(t0=self.draw.step(), rank=rank, scope="rank", cause=("gradient",), note="clips at 0.05")

    def before_step(self) -> None:
        if self.is_active and self.is_here:
            self.training.clip = 0.05


class RankLrDiffers(Fault):
    """One rank was started with another learning rate."""

    origin = "own"
    setups = ("rnn-4", "cnn-4", "mlp-4", "transformer-4")

    def build(self) -> None:
        rank, self.factor = self.draw.rank(self.training), self.draw.between(1.1, 2)
        t0 = self.draw.pick([0, self.draw.step()])
        self.truth = Truth(t0=t0, rank=rank, scope="rank", cause=("lr",), note=f"lr x {self.factor:.2f}")

    def rate(self, rate: float) -> float:
        return rate * self.factor if self.is_active and self.is_here else rate


class SlowLoaderRank(Fault):
    """The loader of one rank takes its time."""

    origin = "own"
    setups = ("mlp-paced-4",)

    def build(self) -> None:
        rank, self.seconds = self.draw.rank(self.training), self.draw.between(0.01, 0.03)
        note = f"{1000 * self.seconds:.0f} ms per batch"
        self.truth = Truth(t0=self.draw.step(), rank=rank, scope="rank", cause=("time", "data"), note=note)

    def batch(self, batch: Batch) -> Batch:
        if self.is_active and self.is_here:
            time.sleep(self.seconds)
        return batch
