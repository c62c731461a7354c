"""Learning rates, optimizer state, and what a resume does to them."""

from __future__ import annotations

import copy
from typing import Any

import torch

from zoo.faults import Fault, blocks_of, change_gradient, matrices_of, modules_of, parameter_of
from zoo.truth import Truth

ADAM = ("transformer", "mlp", "rnn-lstm", "moe")
ANY = ("transformer", "cnn-sgd", "rnn", "mlp-sgd")


class LrJump(Fault):
    """The learning rate is suddenly many times what it was."""

    origin = "sheet"
    setups = ANY

    def build(self) -> None:
        self.factor = self.draw.strength(5, 30)
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("lr",), note=f"lr x {self.factor:.1f}")

    def rate(self, rate: float) -> float:
        return rate * self.factor if self.is_active else rate


class LrZero(Fault):
    """The schedule has ended too early: the learning rate is 0."""

    origin = "sheet"
    setups = ("rnn-lstm", "transformer-bf16", "cnn", "mlp")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("lr",), note="lr 0")

    def rate(self, rate: float) -> float:
        return 0.0 if self.is_active else rate


class LrSlowRamp(Fault):
    """The learning rate creeps upwards, a little each step."""

    origin = "sheet"
    setups = ANY

    def build(self) -> None:
        self.growth = self.draw.between(1.01, 1.04)
        note = f"lr x {self.growth:.3f} each step"
        self.truth = Truth(t0=self.draw.step(60, 150), scope="global", cause=("lr",), note=note)

    def rate(self, rate: float) -> float:
        return rate * min(self.growth**self.age, 100.0) if self.is_active else rate


class LrFastDecay(Fault):
    """The learning rate decays far too fast."""

    origin = "sheet"
    setups = ("mlp", "rnn", "transformer-drop", "cnn")

    def build(self) -> None:
        self.decay = self.draw.between(0.9, 0.96)
        note = f"lr x {self.decay:.3f} each step"
        self.truth = Truth(t0=self.draw.step(60, 150), scope="global", cause=("lr",), note=note)

    def rate(self, rate: float) -> float:
        return rate * self.decay**self.age if self.is_active else rate


class LrHighStart(Fault):
    """No warm-up and far too high a rate, from the first step."""

    origin = "sheet"
    setups = ("transformer", "rnn", "mlp", "transformer-relu")

    def build(self) -> None:
        self.lr = self.training.setup.lr * self.draw.strength(30, 120)
        self.truth = Truth(t0=0, scope="global", cause=("lr",), note=f"lr {self.lr:.2g} from the first step")

    def rate(self, rate: float) -> float:
        return self.lr


class LrTooHighWarm(Fault):
    """The warm-up leads to a peak that is far too high."""

    origin = "sheet"
    setups = ("mlp", "transformer-relu", "rnn-lstm", "transformer")

    def build(self) -> None:
        self.factor = self.draw.strength(20, 80)
        self.truth = Truth(t0=0, scope="global", cause=("lr",), note=f"peak x {self.factor:.0f}")

    def rate(self, rate: float) -> float:
        return rate * self.factor


class GroupLr100xLow(Fault):
    """A group of parameters trains at a hundredth of its rate."""

    origin = "sheet"
    name = "group_lr_100x_low"
    setups = ("transformer", "mlp", "cnn", "moe")

    def build(self) -> None:
        site = self.draw.pick(blocks_of(self.model))
        t0 = self.draw.pick([0, self.draw.step(60, 100), self.draw.step(100, 140), self.draw.step(140, 180)])
        self.truth = Truth(t0=t0, site=site, cause=("lr",), note="lr / 100 in its group")
        optimizer = self.training.optimizer
        own = {id(part) for part in self.model.get_submodule(site).parameters()}
        group = optimizer.param_groups[0]
        chosen = [part for part in group["params"] if id(part) in own]
        group["params"] = [part for part in group["params"] if id(part) not in own]
        optimizer.add_param_group({**{key: group[key] for key in group if key != "params"}, "params": chosen})

    def before_step(self) -> None:
        self.training.optimizer.param_groups[1]["rate_factor"] = 0.01 if self.is_active else 1.0


class FrozenParam(Fault):
    """One parameter has a gradient and is not in the optimizer."""

    origin = "sheet"
    setups = ("transformer", "cnn-sgd", "rnn", "mlp")

    def build(self) -> None:
        t0 = self.draw.pick([0, self.draw.step(60, 90), 0, self.draw.step(90, 180)])
        self.truth = Truth(t0=t0, site=self.draw.pick(matrices_of(self.model)), note="not in the optimizer")
        if t0 == 0:
            self.leave_out()

    def before_step(self) -> None:
        if self.is_now and self.truth.t0 > 0:
            self.leave_out()

    def leave_out(self) -> None:
        frozen = parameter_of(self.model, str(self.truth.site))
        group = self.training.optimizer.param_groups[0]
        group["params"] = [parameter for parameter in group["params"] if parameter is not frozen]


class ZeroInit(Fault):
    """Two matrices in a row start at zero: neither ever gets a gradient."""

    origin = "sheet"
    setups = ("transformer", "mlp-sgd", "transformer-relu", "transformer-bf16")

    def build(self) -> None:
        if self.training.setup.model == "mlp":
            number = self.draw.pick(range(len(self.model.layers) - 1))  # type: ignore[arg-type]
            names: list[str] = [f"layers.{number}.linear", f"layers.{number + 1}.linear"]
        else:
            number = self.draw.pick(range(len(self.model.blocks)))  # type: ignore[arg-type]
            names = [f"blocks.{number}.mlp.up", f"blocks.{number}.mlp.down"]
        self.truth = Truth(t0=0, site=names[0], also=(names[1],), note="weight and bias zero, as in the next matrix")
        for name in names:
            module = self.model.get_submodule(name)
            for parameter in module.parameters():
                parameter.data.zero_()


class EpsTooLarge(Fault):
    """Adam's eps is far above the gradients' size: hardly anything moves."""

    origin = "sheet"
    setups = ADAM

    def build(self) -> None:
        self.eps = self.draw.strength(0.3, 10)
        t0 = self.draw.pick([0, self.draw.step(60, 120), 0, self.draw.step(120, 180)])
        self.truth = Truth(t0=t0, scope="global", cause=("optimizer",), note=f"eps {self.eps:.1g}")

    def before_step(self) -> None:
        if self.is_now:
            self.training.optimizer.param_groups[0]["eps"] = self.eps


class WdBug(Fault):
    """Weight decay is hundreds of times too strong."""

    origin = "sheet"
    setups = ("transformer", "mlp", "cnn", "rnn")

    def build(self) -> None:
        self.decay = self.draw.strength(15, 60)
        self.truth = Truth(
            t0=self.draw.step(), scope="global", cause=("optimizer",), note=f"weight decay {self.decay:.0f}"
        )

    def before_step(self) -> None:
        if self.is_now:
            self.training.optimizer.param_groups[0]["weight_decay"] = self.decay


class NoZeroGrad(Fault):
    """Gradients are not cleared any more and pile up."""

    origin = "sheet"
    setups = ("transformer", "mlp-sgd", "rnn", "cnn-sgd")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("gradient",), note="zero_grad left out")

    def clears_gradients(self) -> bool:
        return not self.is_active


class EmbGradSpike(Fault):
    """The embedding's gradient is a thousand times too large for a step."""

    origin = "sheet"
    setups = ("transformer", "rnn", "transformer-bf16", "moe")

    def build(self) -> None:
        site = self.draw.pick(["tokens.weight", "positions.weight"]) if hasattr(self.model, "positions") else ""
        self.factor = self.draw.strength(100, 3000)
        note = f"gradient x {self.factor:.0f}, once"
        self.truth = Truth(t0=self.draw.step(), site=site or "tokens.weight", note=note)
        change_gradient(self.model, str(self.truth.site), lambda found: found * self.factor if self.is_now else found)


class OneParamVLost(Fault):
    """The second moment of one parameter is lost."""

    origin = "sheet"
    name = "one_param_v_lost"
    setups = ADAM

    def build(self) -> None:
        site = self.draw.pick(matrices_of(self.model))
        self.truth = Truth(t0=self.draw.step(), site=site, cause=("optimizer",), note="exp_avg_sq zeroed")

    def before_step(self) -> None:
        if self.is_now:
            parameter = parameter_of(self.model, str(self.truth.site))
            self.training.optimizer.state[parameter]["exp_avg_sq"].zero_()


class ResumeBadV(Fault):
    """A resume brings second moments back far too small."""

    origin = "sheet"
    setups = ADAM

    def build(self) -> None:
        self.factor, self.is_restart = self.draw.strength(1e-5, 1e-3), self.draw.pick([True, False])
        note = f"v x {self.factor:.0e}" + (", in a resumed run" if self.is_restart else "")
        self.truth = Truth(t0=self.draw.step(), scope="global", cause=("optimizer",), note=note)

    def before_step(self) -> None:
        if self.is_now:
            for state in self.training.optimizer.state.values():
                state["exp_avg_sq"] *= self.factor
            if self.is_restart:
                self.training.restart()


class ResumeOldWeights(Fault):
    """A resume brings back weights of long ago with the optimizer of now."""

    origin = "sheet"
    setups = ("transformer", "mlp", "rnn", "cnn")

    def build(self) -> None:
        self.is_restart, self.kept = self.draw.pick([True, False]), dict[str, Any]()
        self.old = self.draw.pick([20, 30, 40, 50])
        note = f"weights of step {self.old}" + (", in a resumed run" if self.is_restart else "")
        self.truth = Truth(t0=self.draw.step(110, 180), scope="global", cause=("weights",), note=note)

    def before_step(self) -> None:
        if self.training.step == self.old:
            self.kept = copy.deepcopy(self.model.state_dict())
        if self.is_now:
            with torch.no_grad():
                self.model.load_state_dict(self.kept)
            if self.is_restart:
                self.training.restart()


class WeightNoiseAllRanks(Fault):
    """Weights get noise, the same on every rank: no replica differs and no norm moves."""

    origin = "sheet"
    setups = ("mlp-4", "cnn-4", "rnn-4", "transformer-4")

    def build(self) -> None:
        self.noise = self.draw.strength(0.01, 0.1)
        note = f"noise of {self.noise:.1%} of its size"
        if self.draw.nth % 2:
            self.truth = Truth(t0=self.draw.step(), scope="global", cause=("weights",), note=note + " on all matrices")
        else:
            site = self.draw.pick(matrices_of(self.model))
            self.truth = Truth(t0=self.draw.step(), site=site, cause=("weights",), note=note)

    def before_step(self) -> None:
        if self.is_now:
            same = torch.Generator().manual_seed(5)
            for name in [self.truth.site] if self.truth.site else matrices_of(self.model):
                weight = parameter_of(self.model, name).data
                noise = torch.randn(weight.shape, generator=same)
                weight += noise * self.noise * weight.norm() / noise.norm()


class GradSignFlip(Fault):
    """One parameter's gradient has the wrong sign."""

    origin = "sheet"
    setups = ("mlp", "transformer", "cnn-sgd", "rnn")

    def build(self) -> None:
        site = self.draw.pick(matrices_of(self.model))
        t0 = self.draw.pick([0, self.draw.step()])
        self.truth = Truth(t0=t0, site=site, note="gradient times -1")
        change_gradient(self.model, site, lambda found: -found if self.is_active else found)


class DeadRelu(Fault):
    """One bad update of a bias silences most units of a ReLU layer."""

    origin = "sheet"
    setups = ("transformer-relu", "mlp", "cnn", "mlp-sgd")

    def build(self) -> None:
        layers = [name.rpartition(".")[0] for name in modules_of(self.model, torch.nn.ReLU)]
        layer = self.draw.pick(layers)
        part = {"transformer": "up", "mlp": "linear", "cnn": "norm"}[self.training.setup.model]
        self.site, self.push = f"{layer}.{part}.bias", self.draw.strength(8, 60)
        note = f"bias - {self.push:.0f}"
        self.truth = Truth(t0=self.draw.step(), site=layer, also=(self.site,), cause=("weights",), note=note)

    def after_update(self) -> None:
        if self.is_now:
            parameter_of(self.model, self.site).data -= self.push
