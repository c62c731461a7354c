"""Second round, for building: faults that rules may be written for."""

from __future__ import annotations

import torch
from torch import nn

from zoo.faults import Fault, blocks_of, modules_of
from zoo.samples import Batch
from zoo.truth import Truth


class NormEpsRaised(Fault):
    """A normalisation gets an eps that outweighs the variance, as with a wrong config after a resume."""

    origin = "second"
    setups = ("transformer", "cnn", "transformer-relu", "moe")

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, nn.LayerNorm, nn.BatchNorm2d))
        self.eps = self.draw.strength(0.1, 3)
        self.truth = Truth(t0=self.draw.step(), site=site, cause=("mode",), note=f"eps {self.eps:.2g}")

    def before_step(self) -> None:
        if self.is_now:
            self.model.get_submodule(str(self.truth.site)).eps = self.eps


class Beta2Lowered(Fault):
    """Adam's second beta falls to a value that makes its steps as noisy as signs."""

    origin = "second"
    setups = ("mlp", "transformer", "rnn", "cnn")

    def build(self) -> None:
        self.beta = self.draw.between(0.1, 0.6)
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("optimizer",), note=f"beta2 {self.beta:.2f}")

    def before_step(self) -> None:
        if self.is_now:
            for group in self.training.optimizer.param_groups:
                group["betas"] = (group["betas"][0], self.beta)


class BlockFrozen(Fault):
    """A callback freezes a block in the middle of the run."""

    origin = "second"
    setups = ("transformer", "mlp", "cnn", "transformer-relu")

    def build(self) -> None:
        site = self.draw.pick(blocks_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, note="requires_grad off")

    def before_step(self) -> None:
        if self.is_now:
            self.model.get_submodule(str(self.truth.site)).requires_grad_(False)


class HalfBatchStuck(Fault):
    """Half of the rows of every batch are the same: one of two loader workers hangs."""

    origin = "second"
    setups = ("mlp", "cnn", "rnn", "transformer")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note="half of the rows repeat")
        self.kept: Batch | None = None

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        self.kept = self.kept or batch
        half = len(batch["inputs"]) // 2
        return {key: torch.cat([self.kept[key][:half], value[half:]]) for key, value in batch.items()}
