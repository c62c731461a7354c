"""Own faults: modules that do something else than they did."""

from __future__ import annotations

import torch
from torch import nn

from zoo.faults import Fault, blocks_of, change_output, modules_of, parameter_of
from zoo.models import Attention, Experts, Transformer
from zoo.truth import Truth


class NormInEval(Fault):
    """After an evaluation a batch normalisation stays in eval mode, with statistics of long ago."""

    origin = "own"
    setups = ("cnn", "cnn-sgd")

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, nn.BatchNorm2d))
        self.drift = self.draw.strength(2, 10)
        note = f"eval mode, running variance off by {self.drift:.1f}"
        self.truth = Truth(t0=self.draw.step(), site=site, cause=("mode",), note=note)

    def before_step(self) -> None:
        if self.is_now:
            norm = self.model.get_submodule(str(self.truth.site))
            assert isinstance(norm, nn.BatchNorm2d)
            assert norm.running_var is not None
            norm.eval()
            norm.running_var /= self.drift


class DropoutTooHigh(Fault):
    """A dropout that kept nine in ten keeps one in ten."""

    origin = "own"
    setups = ("transformer-drop",)

    def build(self) -> None:
        self.share = self.draw.between(0.7, 0.97)
        site = self.draw.pick(modules_of(self.model, nn.Dropout))
        block = site.rpartition(".")[0]
        note = f"drops {self.share:.0%}"
        self.truth = Truth(t0=self.draw.step(), site=site, also=(block,), cause=("mode",), note=note)

    def before_step(self) -> None:
        if self.is_now:
            drop = self.model.get_submodule(str(self.truth.site))
            assert isinstance(drop, nn.Dropout)
            drop.p = self.share


class LayerDetached(Fault):
    """A module's output is cut from the graph: nothing before it learns through it."""

    origin = "own"
    setups = ("mlp", "transformer", "rnn", "cnn")

    def build(self) -> None:
        kinds = (nn.Linear, nn.Conv2d, nn.Embedding, Attention)
        found = [name for name in modules_of(self.model, *kinds) if name != "head"]
        t0 = self.draw.pick([0, self.draw.step(60, 100), self.draw.step(100, 140), self.draw.step(140, 180)])
        site = self.draw.pick(found)
        self.truth = Truth(t0=t0, site=site, note="output detached")
        change_output(self.model.get_submodule(site), lambda out: out.detach() if self.is_active else out)


class StaleOutput(Fault):
    """A module hands out what it computed for the batch before."""

    origin = "own"
    setups = ("transformer", "mlp", "transformer-relu", "cnn")

    def build(self) -> None:
        kinds = (nn.Linear, nn.Conv2d, Attention)
        found = [name for name in modules_of(self.model, *kinds) if name != "head"]
        self.truth = Truth(t0=self.draw.step(), site=self.draw.pick(found), note="output of the step before")
        self.kept: torch.Tensor | None = None
        change_output(self.model.get_submodule(str(self.truth.site)), self.delay)

    def delay(self, output: torch.Tensor) -> torch.Tensor:
        old, self.kept = self.kept, output.detach()
        return old if self.is_active and old is not None and old.shape == output.shape else output


class CausalMaskLost(Fault):
    """One attention sees the future."""

    origin = "own"
    setups = ("transformer", "moe", "transformer-relu", "transformer-bf16")

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, Attention))
        self.truth = Truth(t0=self.draw.step(), site=site, note="no causal mask")

    def before_step(self) -> None:
        if self.is_now:
            attention = self.model.get_submodule(str(self.truth.site))
            assert isinstance(attention, Attention)
            attention.is_causal = False


class RecurrentGain(Fault):
    """The recurrent weights are several times too large."""

    origin = "own"
    setups = ("rnn", "rnn-lstm")

    def build(self) -> None:
        self.factor = self.draw.strength(3, 12)
        note = f"x {self.factor:.1f}"
        self.truth = Truth(t0=self.draw.step(), site="rnn.weight_hh_l0", also=("rnn",), cause=("weights",), note=note)

    def before_step(self) -> None:
        if self.is_now:
            parameter_of(self.model, "rnn.weight_hh_l0").data *= self.factor


class BalancingReversed(Fault):
    """The balancing loss has the wrong sign and rewards crowding."""

    origin = "own"
    setups = ("moe",)

    def build(self) -> None:
        self.weight = self.draw.strength(0.2, 1)
        sites = modules_of(self.model, Experts)
        note = f"auxiliary loss x -{self.weight:.1f}"
        self.truth = Truth(
            t0=self.draw.step(60, 150), site=f"{sites[0]}.router", also=tuple(sites[1:] + sites), note=note
        )

    def before_step(self) -> None:
        if self.is_now:
            assert isinstance(self.model, Transformer)
            self.model.aux_weight = -self.weight


class NormWeightsLost(Fault):
    """The gain of one normalisation is zero after loading."""

    origin = "own"
    setups = ("transformer", "cnn", "rnn", "transformer-drop")

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, nn.LayerNorm, nn.BatchNorm2d))
        self.share = self.draw.pick([0.0, 0.02, 0.05, 0.1])
        note = f"gain x {self.share}"
        self.truth = Truth(t0=self.draw.step(), site=site, cause=("weights",), note=note)

    def before_step(self) -> None:
        if self.is_now:
            parameter_of(self.model, f"{self.truth.site}.weight").data *= self.share


class BlockSkipped(Fault):
    """A block is skipped: its input comes out again."""

    origin = "own"
    setups = ("transformer", "transformer-bf16", "transformer-relu", "transformer-drop")

    def build(self) -> None:
        site = self.draw.pick(blocks_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, note="returns its input")
        block = self.model.get_submodule(site)
        original = block.forward
        block.forward = lambda x: x if self.is_active else original(x)


class QuantisedActivations(Fault):
    """One layer's output is rounded to a few levels."""

    origin = "own"
    setups = ("mlp", "transformer", "cnn", "rnn")

    def build(self) -> None:
        kinds = (nn.Linear, nn.Conv2d, nn.Embedding)
        site = self.draw.pick([name for name in modules_of(self.model, *kinds) if name != "head"])
        self.levels = self.draw.pick([1, 2, 3, 4])
        note = f"rounded to {self.levels} levels a unit"
        self.truth = Truth(t0=self.draw.step(), site=site, note=note)
        change_output(self.model.get_submodule(site), self.rounded)

    def rounded(self, output: torch.Tensor) -> torch.Tensor:
        if not self.is_active:
            return output
        coarse = (output / output.detach().std() * self.levels / 2).round() * output.detach().std() * 2 / self.levels
        return output + (coarse - output).detach()
