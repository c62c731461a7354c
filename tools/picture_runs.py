"""The runs that tools/make_screenshots.py draws: small real training runs, some with an injected fault.

`torchrun --nproc-per-node 4 tools/picture_runs.py FOLDER` trains the one of several ranks.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vario
from vario import demo

STEPS = 240
FAULT_STEP = 140
NAN_STEPS = range(206, 210)
BATCH = 4
RANKS = 4
RANK_STEPS = 120
QUANTITIES = ["weight", "gradient", "activation", "activation_gradient", "moment", "update", "unexpected_change"]


def train_all(folder: Path) -> None:
    """Train all runs that do not exist yet."""
    # From a loop they would be a group of runs, folded into one row.
    _train(folder, "whole", is_faulty=False)
    _train(folder, "broken", is_faulty=True)
    if not (folder / "slow-rank").exists():
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launch, __file__, str(folder)], env=environment, check=True)


def _train(folder: Path, name: str, is_faulty: bool) -> None:
    if not (folder / name).exists():
        with Training(folder, name) as training:
            for step in range(STEPS):
                training.step(step, is_faulty)


@contextmanager
def training_now(folder: Path) -> Iterator[None]:
    """A run that is still training while this lasts."""
    shutil.rmtree(folder / "now", ignore_errors=True)
    with Training(folder, "now") as training:
        for step in range(STEPS // 3):
            training.step(step)
        yield


class Training:
    """The transformer of `vario demo`, with a schedule, watched at every step."""

    def __init__(self, folder: Path, name: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        text = demo.documentation()
        alphabet = sorted(set(text))
        self.tokens = torch.tensor([alphabet.index(character) for character in text])
        self.model = cast(Any, demo.make_model(len(alphabet)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, _share_of_rate)
        options = {"quantities": QUANTITIES, "every": 1, "overhead": "off", "directory": str(folder), "name": name}
        self.monitor = vario.watch(self.model, self.optimizer, **options)  # type: ignore[arg-type]
        self._is_bad = False
        for parameter in self.model.blocks[3].attention.parameters():
            parameter.register_hook(self._spoil)

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        self.monitor.close()

    def _spoil(self, gradient: torch.Tensor) -> torch.Tensor | None:
        return gradient * math.nan if self._is_bad else None

    def step(self, step: int, is_faulty: bool = False) -> None:
        """One step. At the fault one matrix becomes eight times as large; later one module's gradients are NaN."""
        self._is_bad = is_faulty and step in NAN_STEPS
        if is_faulty and step == FAULT_STEP:
            with torch.no_grad():
                self.model.blocks[1].mlp[2].weight.mul_(8)
        starts = torch.randint(len(self.tokens) - demo.CONTEXT - 1, (BATCH, 1))
        window = self.tokens[starts + torch.arange(demo.CONTEXT + 1)]
        scores = self.model(window[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), window[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self.model.parameters():
            parameter.grad.nan_to_num_(0.0)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.monitor.log(loss=loss.item(), total_steps=STEPS)


def _share_of_rate(step: int) -> float:
    """Up for a tenth of the steps, then down along a cosine."""
    warm = STEPS // 10
    return (step + 1) / warm if step < warm else 0.05 + 0.475 * (1 + math.cos(math.pi * step / STEPS))


def train_one_rank(folder: str) -> None:
    """One of several ranks. Each takes its time in the forward pass, the last one longer from half way on."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    rank = dist.get_rank()
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.GELU())))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(rank)
    seconds = 0.03
    # Sleeping stands for work: on a machine with fewer cores than ranks, work would only show who got a core.
    model[0].register_forward_pre_hook(lambda *_: time.sleep(seconds))
    quantities = ["gradient", "gradient_local", "weight"]
    with vario.watch(
        parallel, optimizer, quantities=quantities, every=1, overhead="off", directory=folder, name="slow-rank"
    ) as monitor:
        for step in range(RANK_STEPS):
            if rank == RANKS - 1 and step == RANK_STEPS // 2:
                seconds = 0.045
            rows = torch.randn(64, 64, generator=batches)
            loss = (parallel(rows) - rows.roll(1, dims=1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    dist.destroy_process_group()


if __name__ == "__main__":
    train_one_rank(sys.argv[1])
