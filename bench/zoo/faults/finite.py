"""Numbers that are no numbers, or about to be."""

from __future__ import annotations

import torch
from torch.nn import functional

from zoo.faults import Fault, change_gradient, change_output, matrices_of, modules_of
from zoo.models import Attention, Feed, Stage
from zoo.samples import IGNORED, Batch
from zoo.truth import Truth


class NanEmptyMask(Fault):
    """On one rank no target counts in a batch: the mean over nothing is NaN."""

    origin = "sheet"
    setups = ("transformer-4", "rnn-4")

    def build(self) -> None:
        rank = self.draw.rank(self.training)
        note = f"all targets of rank {rank} ignored in one batch"
        if self.draw.nth % 2:
            note += ", mean taken by hand"
            self.original, self.training.criterion = self.training.criterion, self.mean_by_hand
        self.truth = Truth(t0=self.draw.step(), rank=rank, scope="rank", cause=("loss",), note=note)

    def mean_by_hand(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What cross_entropy spares its callers: here the gradients are NaN as well."""
        if not (self.is_now and self.is_here):
            return self.original(logits, targets)
        mask = (targets.flatten() != IGNORED).float()
        losses = functional.cross_entropy(
            logits.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction="none"
        )
        return (losses * mask).sum() / mask.sum()

    def batch(self, batch: Batch) -> Batch:
        if self.is_now and self.is_here:
            batch["targets"] = torch.full_like(batch["targets"], IGNORED)
        return batch


class NanKernel(Fault):
    """A kernel writes one NaN into a module's output on one rank."""

    origin = "sheet"
    setups = ("transformer-4", "cnn-4", "mlp-4", "rnn-4")

    def build(self) -> None:
        found = modules_of(self.model, Attention, Feed, Stage, torch.nn.ReLU, torch.nn.LayerNorm)
        site = self.draw.pick([name for name in found if not name.endswith(".act") or name.startswith("layers")])
        rank = self.draw.rank(self.training)
        self.truth = Truth(t0=self.draw.step(), site=site, rank=rank, note="one NaN in its output, once")
        change_output(self.model.get_submodule(site), self.spoil)

    def spoil(self, output: torch.Tensor) -> torch.Tensor:
        if self.is_now and self.is_here:
            output = output.clone()
            output.view(-1)[self.draw.random.randrange(output.numel())] = torch.nan
        return output


class InfInOneGrad(Fault):
    """One element of one parameter's gradient overflows, once."""

    origin = "sheet"
    setups = ("transformer", "cnn", "rnn", "moe")

    def build(self) -> None:
        site = self.draw.pick(matrices_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, note="one Inf in its gradient, once")
        change_gradient(self.model, site, self.spoil)

    def spoil(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.is_now:
            gradient = gradient.clone()
            gradient.view(-1)[3] = torch.inf
        return gradient


class Fp16Overflow(Fault):
    """A hidden layer grows step by step and is scaled back afterwards: half precision ends at 65,504."""

    origin = "sheet"
    setups = ("transformer-fp16", "mlp-fp16")

    def build(self) -> None:
        if self.training.setup.model == "mlp":
            layers = range(len(self.model.layers) - 1)  # type: ignore[arg-type]
            number = self.draw.pick(layers)
            grown, shrunk = f"layers.{number}.linear", f"layers.{number + 1}.linear"
            also: tuple[str, ...] = (f"layers.{number}",)
        else:
            block = self.draw.pick(range(len(self.model.blocks)))  # type: ignore[arg-type]
            grown, shrunk = f"blocks.{block}.mlp.up", f"blocks.{block}.mlp.down"
            also = (f"blocks.{block}.mlp",)
        self.growth = self.draw.between(1.25, 1.4)
        note = f"output x {self.growth:.2f} each step, undone in {shrunk}"
        self.truth = Truth(t0=self.draw.step(60, 150), site=grown, also=also, note=note)
        change_output(self.model.get_submodule(grown), lambda out: out * self.factor if self.is_active else out)
        change_output(self.model.get_submodule(shrunk), lambda out: out / self.factor if self.is_active else out)

    @property
    def factor(self) -> float:
        return float(min(self.growth**self.age, 1e30))


class Fp16Underflow(Fault):
    """The loss scale is far too small: most gradients round to zero in half precision."""

    origin = "sheet"
    setups = ("transformer-fp16", "mlp-fp16")

    def build(self) -> None:
        self.power = round(self.draw.between(-22, -16))
        note = f"loss scale 2**{self.power}"
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("loss scale",), note=note)

    def before_step(self) -> None:
        if self.is_active:
            scaler = self.training.scaler
            assert scaler is not None
            scaler.update(2.0**self.power)
