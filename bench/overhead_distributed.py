"""One rank of `overhead.py --distributed`: a watched model and its unwatched twin, alternating steps, under DDP or
FSDP2."""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from models import GPT
from overhead import Attach, ours, train_step
from peers import GRADIENTS, trainer_mon

CASES: dict[str, Attach] = {
    "vario: gradients, local and reduced": ours(["gradient_local", "gradient"]),
    "vario: the same, on every rank": ours(["gradient_local", "gradient"], replicas=True),
    "vario through TrainerMon: gradients": trainer_mon("vario.compat.msprobe", **GRADIENTS),
    "msprobe: gradients": trainer_mon("msprobe.pytorch", **GRADIENTS),
}


def make(engine: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model: torch.nn.Module = GPT()
    if engine == "ddp":
        model = DistributedDataParallel(model)
    else:
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block)
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def ratios(engine: str, attach: Attach, pairs: int, ids: torch.Tensor, folder: str) -> dict[str, float]:
    """Median CPU-time and wall-time ratio of the watched model to its twin, steps alternating."""
    watched, plain = make(engine), make(engine)
    detach = attach(*watched, folder)
    cpu, wall, plain_seconds = [], [], []
    for pair in range(pairs + 2):
        spent = []
        for model, optimizer in (watched, plain):
            dist.barrier()
            began, began_cpu = time.perf_counter(), time.process_time()
            train_step(model, optimizer, ids)
            spent.append((time.process_time() - began_cpu, time.perf_counter() - began))
        if pair >= 2:
            cpu.append(spent[0][0] / spent[1][0])
            wall.append(spent[0][1] / spent[1][1])
            plain_seconds.append(spent[1][1])
    detach()
    medians = [statistics.median(values) for values in (cpu, wall, plain_seconds)]
    return dict(zip(("cpu", "wall", "plain_seconds"), medians, strict=True))


def peak_bytes(engine: str, attach: Attach | None, ids: torch.Tensor, folder: str) -> int:
    """Return the peak memory of this process after a few steps of one model."""
    model, optimizer = make(engine)
    detach = attach(model, optimizer, folder) if attach is not None else lambda: None
    for _ in range(4):
        train_step(model, optimizer, ids)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    detach()
    return peak


def main() -> None:
    engine, what, case, pairs, tokens = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    ids = torch.randint(0, 16384, (int(tokens) // 128, 128), generator=torch.Generator().manual_seed(rank))
    with tempfile.TemporaryDirectory() as folder:
        if what == "ratio":
            found: dict[str, float] = ratios(engine, CASES[case], int(pairs), ids, folder)
        else:
            found = {"peak": peak_bytes(engine, CASES.get(case), ids, folder)}
    Path(os.environ["OVERHEAD_RESULT"] + f".{rank}").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
