"""Second round, for choosing thresholds."""

from __future__ import annotations

import torch
from torch import nn

from zoo.faults import Fault, change_gradient, matrices_of, modules_of, parameter_of
from zoo.samples import Batch
from zoo.truth import Truth


class NormMomentumZero(Fault):
    """A batch normalisation stops learning its running statistics."""

    origin = "second"
    setups = ("cnn", "cnn-sgd")

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, nn.BatchNorm2d))
        self.truth = Truth(t0=self.draw.step(), site=site, cause=("mode",), note="momentum 0")

    def before_step(self) -> None:
        if self.is_now:
            self.model.get_submodule(str(self.truth.site)).momentum = 0.0


class LabelsConstant(Fault):
    """A part of the labels has become the first class, or zero."""

    origin = "second"
    setups = ("cnn", "mlp", "cnn-sgd", "transformer")

    def build(self) -> None:
        self.share = self.draw.between(0.3, 0.8)
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note=f"{self.share:.0%} of the labels")

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        targets = batch["targets"].clone()
        targets[: round(self.share * len(targets))] = 0
        return {**batch, "targets": targets}


class GradientStale(Fault):
    """One parameter keeps getting the gradient of one step: a buffer that is no longer written."""

    origin = "second"
    setups = ("transformer", "mlp", "rnn", "cnn")

    def build(self) -> None:
        site = self.draw.pick(matrices_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, note="the same gradient at every step")
        self.kept: torch.Tensor | None = None

        def stale(gradient: torch.Tensor) -> torch.Tensor:
            if not self.is_active:
                return gradient
            self.kept = gradient.clone() if self.kept is None else self.kept
            return self.kept.clone()

        change_gradient(self.model, site, stale)


class MomentsSwapped(Fault):
    """A checkpoint is loaded with the moments of two parameters swapped."""

    origin = "second"
    setups = ("transformer", "transformer-drop")

    def build(self) -> None:
        self.pair = ("blocks.0.attn.q_proj.weight", "blocks.1.attn.out_proj.weight")
        site, other = self.pair
        self.truth = Truth(t0=self.draw.step(), site=site, also=(other,), note="moments swapped")

    def before_step(self) -> None:
        if self.is_now:
            state = self.training.optimizer.state
            one, two = (parameter_of(self.model, name) for name in self.pair)
            state[one], state[two] = state[two], state[one]
