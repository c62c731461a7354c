"""Own faults: what goes wrong between the disk and the loss."""

from __future__ import annotations

import torch

from zoo.faults import Fault
from zoo.models import VOCABULARY
from zoo.samples import IGNORED, PAD, Batch, cut_text
from zoo.truth import Truth


class LabelShift(Fault):
    """Labels are shifted once too often: the model is asked for the token after the next."""

    origin = "own"
    setups = ("transformer", "rnn", "moe", "transformer-bf16")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data", "loss"), note="labels one place too far")

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        targets = torch.full_like(batch["targets"], IGNORED)
        targets[:, :-1] = batch["targets"][:, 1:]
        return {**batch, "targets": targets}


class PaddingInLoss(Fault):
    """Padding counts in the loss: half of what is learnt is to write nothing."""

    origin = "own"
    setups = ("rnn-lstm", "transformer", "transformer-relu", "rnn")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data", "loss"), note="padding is a target")

    def batch(self, batch: Batch) -> Batch:
        if self.is_active:
            targets = batch["targets"]
            batch["targets"] = torch.where(targets == IGNORED, torch.full_like(targets, PAD), targets)
        return batch


class TokensOutOfOrder(Fault):
    """The tokens of every row are mixed up."""

    origin = "own"
    setups = ("transformer", "rnn", "transformer-drop", "moe")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note="tokens shuffled within rows")
        self.random = torch.Generator().manual_seed(11)

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        rows = batch["rows"]
        return cut_text(rows[:, torch.randperm(rows.shape[1], generator=self.random)])


class VocabularyCut(Fault):
    """A smaller tokenizer: every rarer token has become the same unknown one."""

    origin = "own"
    setups = ("rnn", "transformer", "rnn-lstm", "moe")

    def build(self) -> None:
        self.known = round(VOCABULARY * self.draw.between(0.3, 0.7))
        note = f"tokens from {self.known} on are unknown"
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note=note)

    def batch(self, batch: Batch) -> Batch:
        return cut_text(batch["rows"].clamp(max=self.known)) if self.is_active else batch


class InputsNotNormalised(Fault):
    """Inputs come as they are stored, not centred and scaled."""

    origin = "own"
    setups = ("cnn", "mlp", "cnn-sgd", "mlp-sgd")

    def build(self) -> None:
        self.factor, self.shift = self.draw.strength(4, 100), self.draw.between(1, 5)
        note = f"inputs x {self.factor:.0f}, shifted"
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note=note)

    def batch(self, batch: Batch) -> Batch:
        if self.is_active:
            batch["inputs"] = (batch["inputs"] + self.shift) * self.factor
        return batch


class DeadChannel(Fault):
    """One colour of every image, or one column of the table, is black."""

    origin = "own"
    setups = ("cnn", "mlp", "cnn-sgd", "mlp-sgd")

    def build(self) -> None:
        self.channel = self.draw.pick(range(3))
        self.width = 1 if self.training.setup.model == "cnn" else 4
        note = f"channel {self.channel} is zero"
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note=note)

    def batch(self, batch: Batch) -> Batch:
        if self.is_active:
            batch["inputs"] = batch["inputs"].clone()
            batch["inputs"][:, self.channel * self.width : (self.channel + 1) * self.width] = 0
        return batch


class LoaderSameSeed(Fault):
    """Two loader workers have the same seed: every row comes twice in its batch."""

    origin = "own"
    setups = ("transformer", "cnn", "mlp", "rnn")

    def build(self) -> None:
        t0 = self.draw.pick([0, self.draw.step(60, 100), self.draw.step(100, 180)])
        self.truth = Truth(t0=t0, scope="data", cause=("data",), note="half of each batch repeats the other half")

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        half = len(batch["inputs"]) // 2
        return {key: torch.cat([value[:half], value[:half]]) for key, value in batch.items()}


class SortedByLabel(Fault):
    """Shuffling is lost: every batch has a single class."""

    origin = "own"
    setups = ("cnn", "cnn-sgd")

    def build(self) -> None:
        self.truth = Truth(t0=self.draw.step(), scope="data", cause=("data",), note="one class per batch")

    def batch(self, batch: Batch) -> Batch:
        if not self.is_active:
            return batch
        samples, kind = self.training.samples, self.training.step % 6
        assert samples.targets is not None
        rows = (samples.targets == kind).nonzero().flatten()
        start = (self.training.step * 16) % (len(rows) - 64)
        chosen = rows[start : start + len(batch["targets"])]
        return {"inputs": samples.inputs[chosen], "targets": samples.targets[chosen]}
