"""Second round, the exam: recorded and scored once, when everything else is done."""

from __future__ import annotations

import torch

from zoo.faults import Fault, blocks_of, change_output, matrices_of, modules_of, parameter_of
from zoo.models import Attention, Experts
from zoo.samples import Batch
from zoo.truth import Truth


class AttentionScaleLost(Fault):
    """Attention forgets to divide by the root of its width."""

    origin = "second"
    setups = ("transformer", "transformer-relu", "transformer-bf16")

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, Attention))
        self.truth = Truth(t0=self.draw.step(), site=site, note="scale 1")

    def before_step(self) -> None:
        if self.is_now:
            self.model.get_submodule(str(self.truth.site)).scale = 1.0


class OneExpertOnly(Fault):
    """A router picks one expert for each token instead of two."""

    origin = "second"
    setups = ("moe",)

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, Experts))
        self.truth = Truth(t0=self.draw.step(), site=site, note="top_k 1")

    def before_step(self) -> None:
        if self.is_now:
            self.model.get_submodule(str(self.truth.site)).top_k = 1


class MomentumLost(Fault):
    """SGD goes on without momentum."""

    origin = "second"
    setups = ("mlp-sgd", "cnn-sgd")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("optimizer",), note="momentum 0")

    def before_step(self) -> None:
        if self.is_now:
            for group in self.training.optimizer.param_groups:
                group["momentum"] = 0.0


class MergedTwice(Fault):
    """An adapter is merged into a matrix a second time."""

    origin = "second"
    setups = ("transformer", "mlp", "rnn", "cnn")

    def build(self) -> None:
        self.share = self.draw.between(0.1, 0.5)
        site = self.draw.pick(matrices_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, note=f"a rank-one part of {self.share:.2f}")

    @torch.no_grad()
    def before_step(self) -> None:
        if self.is_now:
            weight = parameter_of(self.model, str(self.truth.site))
            flat = weight.flatten(1)
            added = torch.outer(torch.randn(flat.shape[0]), torch.randn(flat.shape[1]))
            flat += added * (self.share * flat.norm() / added.norm())


class RowsOfZeros(Fault):
    """A decoder of images or a join of tables fails for some rows, which come as zeros."""

    origin = "second"
    setups = ("cnn", "mlp", "cnn-sgd", "mlp-sgd")

    def build(self) -> None:
        self.share = self.draw.between(0.3, 0.7)
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note=f"{self.share:.0%} of the rows")

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        inputs = batch["inputs"].clone()
        inputs[: round(self.share * len(inputs))] = 0
        return {**batch, "inputs": inputs}


class LossDoubled(Fault):
    """The loss is counted twice: a wrapper averages what is averaged already, the other way round."""

    origin = "second"
    setups = ("transformer", "mlp", "rnn", "cnn")

    def build(self) -> None:
        self.factor = self.draw.pick([2.0, 4.0, 0.5, 0.25])
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("gradient", "loss"), note=f"x {self.factor}")

    def to_backward(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.factor if self.is_active else loss


class BlockHalved(Fault):
    """A block returns half of what it did: a kernel that treats one of two halves of the width as padding."""

    origin = "second"
    setups = ("transformer", "mlp", "transformer-relu", "cnn")

    def build(self) -> None:
        site = self.draw.pick(blocks_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, note="half of the output is zero")

        def halved(output: torch.Tensor) -> torch.Tensor:
            if not self.is_active:
                return output
            kept = output.clone()
            kept[..., : output.shape[-1] // 2] = 0
            return kept

        module = self.model.get_submodule(site)
        if not isinstance(module, torch.nn.ModuleDict):
            change_output(module, halved)
        else:
            change_output(module["linear"], halved)


class RateCreepsUp(Fault):
    """A schedule with a wrong sign in its exponent: the rate creeps up, by two per cent a step, to a multiple."""

    origin = "second"
    setups = ("transformer", "cnn", "rnn", "mlp")

    def build(self) -> None:
        self.factor = self.draw.between(4, 12)
        note = f"up to x {self.factor:.1f}"
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("lr",), note=note)

    def rate(self, rate: float) -> float:
        return rate * min(self.factor, 1.02 ** max(0, self.age)) if self.is_active else rate
