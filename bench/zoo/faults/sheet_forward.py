"""Things that go wrong in the forward pass or in what it is fed."""

from __future__ import annotations

import torch

from zoo.faults import Fault, change_output, modules_of
from zoo.models import Attention, Experts, Transformer
from zoo.samples import IGNORED, Batch
from zoo.truth import Truth


class DataStuck(Fault):
    """The loader gives the same batch again and again."""

    origin = "sheet"
    setups = ("transformer", "cnn", "mlp", "rnn")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note="the same batch from here on")
        self.kept: Batch = {}

    def batch(self, batch: Batch) -> Batch:
        if self.is_active and self.kept:
            return self.kept
        self.kept = batch
        return batch


class LabelLeak(Fault):
    """The answer is in the input."""

    origin = "sheet"
    setups = ("transformer", "cnn", "rnn", "mlp")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note="targets visible in the inputs")

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        inputs, targets = batch["inputs"].clone(), batch["targets"]
        if "rows" in batch:
            # Nobody shifted the labels: the model only has to copy.
            targets = inputs.clone()
            targets[batch["targets"] == IGNORED] = IGNORED
            return {**batch, "targets": targets}
        if inputs.dim() == 4:
            inputs[torch.arange(len(inputs)), :, 0, targets] = 4.0
        else:
            inputs[:, : targets.shape[1]] = targets
        return {**batch, "inputs": inputs}


class ResidScaleBug(Fault):
    """A residual branch comes back many times too strong."""

    origin = "sheet"
    setups = ("transformer", "transformer-relu", "moe", "transformer-bf16")

    def build(self) -> None:
        block, half = self.draw.pick(range(len(self.model.blocks))), self.draw.pick(["attn", "mlp"])  # type: ignore[arg-type]
        self.factor = self.draw.strength(4, 20)
        note = f"branch x {self.factor:.1f}"
        self.truth = Truth(t0=self.draw.step(), site=f"blocks.{block}.{half}", also=(f"blocks.{block}",), note=note)
        change_output(
            self.model.get_submodule(str(self.truth.site)), lambda out: out * self.factor if self.is_active else out
        )


class AttnEntropyCollapse(Fault):
    """Attention logits grow step by step until every head looks at one token."""

    origin = "sheet"
    setups = ("transformer", "transformer-relu", "moe", "transformer-drop")

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, Attention))
        self.growth = self.draw.between(1.04, 1.1)
        note = f"scale x {self.growth:.3f} each step"
        self.truth = Truth(t0=self.draw.step(60, 130), site=site, note=note)

    def before_step(self) -> None:
        if self.is_active:
            attention = self.model.get_submodule(str(self.truth.site))
            assert isinstance(attention, Attention)
            attention.scale *= self.growth


class OneHeadQkX30(Fault):
    """The query and key weights of one head are many times too large."""

    origin = "sheet"
    name = "one_head_qk_x30"
    setups = ("transformer", "moe", "transformer-bf16", "transformer-relu")

    def build(self) -> None:
        site, head = self.draw.pick(modules_of(self.model, Attention)), self.draw.pick(range(4), "head")
        self.factor = self.draw.between(20, 40) ** 0.5
        size = 8
        self.rows = slice(head * size, (head + 1) * size)
        note = f"head {head}: queries and keys x {self.factor:.1f} each"
        self.truth = Truth(t0=self.draw.step(), site=site, note=note)

    def before_step(self) -> None:
        if self.is_now:
            attention = self.model.get_submodule(str(self.truth.site))
            assert isinstance(attention, Attention)
            attention.q_proj.weight.data[self.rows] *= self.factor
            attention.k_proj.weight.data[self.rows] *= self.factor


class OutputLogitGrowth(Fault):
    """All output logits drift away together; the loss cannot see it."""

    origin = "sheet"
    setups = ("transformer", "rnn", "cnn", "transformer-bf16")

    def build(self) -> None:
        self.growth = self.draw.between(0.05, 0.2)
        note = f"logits + {self.growth:.2f} each step"
        self.truth = Truth(t0=self.draw.step(60, 150), site="head", also=("root",), note=note)
        change_output(
            self.model.get_submodule("head"), lambda out: out + self.growth * (self.age + 1) if self.is_active else out
        )


class ExpertCollapse(Fault):
    """The router sends more and more tokens to one expert, and nothing balances it."""

    origin = "sheet"
    setups = ("moe",)

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, Experts))
        self.expert, self.growth = self.draw.pick(range(4), "expert"), self.draw.between(0.05, 0.2)
        note = f"router's logit of expert {self.expert} + {self.growth:.2f} each step, no balancing loss"
        self.truth = Truth(t0=self.draw.step(60, 150), site=f"{site}.router", also=(site,), note=note)
        change_output(self.model.get_submodule(f"{site}.router"), self.prefer)

    def prefer(self, logits: torch.Tensor) -> torch.Tensor:
        if self.is_active:
            logits = logits.clone()
            logits[..., self.expert] += self.growth * (self.age + 1)
        return logits

    def before_step(self) -> None:
        if self.is_now:
            assert isinstance(self.model, Transformer)
            self.model.aux_weight = 0.0


class ExpertStarved(Fault):
    """One expert gets no token any more."""

    origin = "sheet"
    setups = ("moe",)

    def build(self) -> None:
        site = self.draw.pick(modules_of(self.model, Experts))
        self.expert, self.push = self.draw.pick(range(4), "expert"), self.draw.strength(4, 30)
        note = f"router's logit of expert {self.expert} - {self.push:.0f}"
        also = (site, f"{site}.experts.{self.expert}")
        self.truth = Truth(t0=self.draw.step(), site=f"{site}.router", also=also, note=note)
        change_output(self.model.get_submodule(f"{site}.router"), self.avoid)

    def avoid(self, logits: torch.Tensor) -> torch.Tensor:
        if self.is_active:
            logits = logits.clone()
            logits[..., self.expert] -= self.push
        return logits
