"""One training as people write them: the loop, the optimizer, the schedule; and where a fault gets its hands in."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import vario
from zoo.faults import Fault
from zoo.models import Transformer, make_model
from zoo.samples import IGNORED, TASKS, Batch, Sampler, make_samples
from zoo.setups import Setup

BUDGET = "VARIO_ZOO_BUDGET"
"""The environment variable with the overhead budget that runs are recorded with."""


def watching() -> dict[str, Any]:
    """Everything at each step, or what an overhead budget leaves of the default."""
    budget = os.environ.get(BUDGET)
    return {"overhead": budget} if budget else {"every": 1, **no_live_rules()}


class Training:
    """A model, its optimizer and its rows; `run` trains, watched."""

    def __init__(self, setup: Setup, seed: int, rank: int = 0) -> None:
        self.setup, self.seed, self.rank, self.step = setup, seed, rank, 0
        torch.manual_seed(seed * 7 + 1)
        self.bare = make_model(setup.model, **setup.options)
        if setup.precision == "bf16_parameters":
            self.bare.to(torch.bfloat16)
        for name, parameter in self.bare.named_parameters():
            parameter.requires_grad_(not name.startswith(setup.frozen or ("\0",)))
        if isinstance(self.bare, Transformer):
            self.bare.criterion = lambda logits, targets: self.criterion(logits, targets)
        if setup.pace_seconds:
            self.bare.forward = self._paced(self.bare.forward)
        self.criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = (
            functional.mse_loss if TASKS[setup.model] == "table" else cross_entropy
        )
        self.pace_factor = 1.0
        self.rank_of_rows = rank
        self.clip = setup.clip
        self.optimizer = self._make_optimizer()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if setup.precision == "fp16" else None
        self.model: nn.Module = DistributedDataParallel(self.bare) if setup.ranks > 1 else self.bare
        size = setup.rows_needed()
        self.samples = make_samples(TASKS[setup.model], seed, size)
        self.sampler = Sampler(seed, size)
        self.fault = Fault.none()
        self._watch: Callable[[bool], vario.Monitor] | None = None
        # Dropout differs from rank to rank.
        torch.manual_seed(seed * 1000 + rank)
        self._train_before(setup.trained_before)

    def _make_optimizer(self) -> torch.optim.Optimizer:
        setup = self.setup
        parameters = [parameter for parameter in self.bare.parameters() if parameter.requires_grad]
        if setup.optimizer == "sgd":
            return torch.optim.SGD(parameters, setup.lr, momentum=0.9, weight_decay=setup.weight_decay)
        if setup.optimizer == "adam":
            return torch.optim.Adam(parameters, setup.lr, betas=(0.9, 0.95))
        return torch.optim.AdamW(parameters, setup.lr, betas=(0.9, 0.95), weight_decay=setup.weight_decay)

    def _paced(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def paced(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            found = forward(*args, **kwargs)
            time.sleep(max(0.0, self.setup.pace_seconds * self.pace_factor - (time.perf_counter() - began)))
            return found

        return paced

    def run(self, directory: Path, name: str, quantities: Sequence[str]) -> None:
        """Train all steps under `vario.watch`; the run's folder is `directory/name`."""

        def watch(is_resumed: bool) -> vario.Monitor:
            return vario.watch(
                self.model,
                self.optimizer,
                directory=str(directory),
                name=name,
                quantities=list(quantities),
                resume=is_resumed,
                **watching(),
            )

        self._watch = watch
        self.monitor = watch(False)
        try:
            for step in range(self.setup.steps):
                self.step = step
                if step == self.setup.resume_at:
                    self.restart()
                self.fault.before_step()
                rate = self.fault.rate(self.setup.rate_at(step))
                self._train_step(rate, self.monitor)
                self.fault.after_update()
                if step % 16 == 15:
                    # Steps this short come faster than they are written; a zoo with holes would be no use.
                    self.monitor.wait()
            if self.monitor.off:
                raise RuntimeError(f"vario switched off {', '.join(sorted(self.monitor.off))}")
        finally:
            self.monitor.close()

    def restart(self) -> None:
        """What a run that stops and is resumed from its checkpoint looks like to the Monitor."""
        assert self._watch is not None
        self.monitor.close()
        self.monitor = self._watch(True)

    def _train_before(self, steps: int) -> None:
        if steps:
            own = self.samples
            self.samples = make_samples(TASKS[self.setup.model], self.seed, self.setup.rows_needed(), 1)
            for step in range(steps):
                self._train_step(min(3e-3, 3e-4 * (step + 1)), None)
            self.samples = own
            self.optimizer = self._make_optimizer()

    def _train_step(self, rate: float, monitor: vario.Monitor | None) -> None:
        fault, setup = self.fault, self.setup
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)
        if fault.clears_gradients():
            self.optimizer.zero_grad()
        losses = []
        for micro in range(setup.accumulation):
            batch = fault.batch(self.next_batch())
            is_last = micro == setup.accumulation - 1
            alone = contextlib.nullcontext() if is_last or setup.ranks == 1 else self.model.no_sync()  # type: ignore[operator]
            with alone:
                loss = self.loss_of(batch)
                losses.append(float(loss.detach()))
                loss = fault.to_backward(loss / setup.accumulation)
                torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss))
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
        fault.before_clipping()
        norm = None
        if self.clip is not None:
            norm = float(torch.nn.utils.clip_grad_norm_(self.bare.parameters(), self.clip))
        fault.before_update()
        if monitor is not None:
            monitor.log(loss=sum(losses) / len(losses), **({} if norm is None else {"grad_norm": norm}))
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def next_batch(self) -> Batch:
        setup = self.setup
        indices = self.sampler.take(setup.batch_at(self.step), self.rank_of_rows, setup.ranks)
        batch = self.samples.batch(indices)
        if setup.mix_change is not None and self.step >= setup.mix_change:
            other = make_samples(TASKS[setup.model], self.seed, setup.rows_needed(), 1).batch(indices)
            half = np.arange(len(indices)) % 2 == 1
            for key, value in batch.items():
                value[half] = other[key][half]
        return batch

    def loss_of(self, batch: Batch) -> torch.Tensor:
        inputs, targets = batch["inputs"], batch["targets"]
        if inputs.is_floating_point():
            inputs = inputs.to(next(self.bare.parameters()).dtype)
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.setup.precision)
        with torch.autocast("cpu", kind) if kind is not None else contextlib.nullcontext():
            if isinstance(self.bare, Transformer):
                loss: torch.Tensor = self.model(inputs, targets)["loss"]
                return loss
            return self.criterion(self.model(inputs).float(), targets)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over all targets that count."""
    return functional.cross_entropy(logits.float().flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def no_live_rules() -> dict[str, Any]:
    """Rules are replayed over the folder later: while recording they would only take time."""
    known = {item.name for item in dataclasses.fields(vario.Config)}
    return {"rules": []} if "rules" in known else {}
