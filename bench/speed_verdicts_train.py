"""The training that `bench/speed_verdicts.py` runs: one part of each step is made slow, and its steps are timed.

`python speed_verdicts_train.py CASE STEPS OUT`. Where TraceML runs it, the step stands in its `trace_step`, as its
documentation asks for; nothing here knows of vario.
"""

import contextlib
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

PAUSE = 0.02
BATCH, WIDTH = 32, 512
case, num_steps, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
rank = int(os.environ.get("RANK", 0))
traced = contextlib.nullcontext
if os.environ.get("TRACED") == "1":
    import traceml_ai

    traceml_ai.init(mode="auto")
    traced = traceml_ai.trace_step


def pause(*cases: str) -> None:
    if case in cases:
        time.sleep(PAUSE)


class Rows(Dataset):
    """Random rows, each of which takes a while in one case."""

    def __len__(self) -> int:
        return BATCH * num_steps

    def __getitem__(self, at: int) -> torch.Tensor:
        if case == "dataset":
            time.sleep(PAUSE / BATCH)
        return torch.randn(WIDTH)


def collate(rows: list[torch.Tensor]) -> torch.Tensor:
    pause("collate")
    return torch.stack(rows)


class Net(nn.Module):
    """Eight layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pause("forward")
        if case == "slow rank" and rank == 1:
            time.sleep(PAUSE)
        return self.inner(x)


class LateState(dict):
    """A state whose pickling takes a while."""

    def __reduce__(self) -> tuple[Any, ...]:
        time.sleep(5 * PAUSE)
        return dict, (dict(self),)


def late(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A link that takes a while: in the hook of DDP that reduces a bucket."""
    reduced = dist.all_reduce(bucket.buffer(), async_op=True).get_future()

    def arrives(future: torch.futures.Future[Any]) -> torch.Tensor:
        time.sleep(PAUSE)
        return future.value()[0] / dist.get_world_size()

    return reduced.then(arrives)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = net = Net()
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(net)
        if case == "slow link":
            model.register_comm_hook(None, late)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.register_step_pre_hook(lambda *_: pause("optimizer"))
    net.inner[4].register_full_backward_hook(lambda *_: pause("backward"))
    ends = []
    for step, x in enumerate(DataLoader(Rows(), batch_size=BATCH, collate_fn=collate)):
        with traced(model):
            optimizer.zero_grad(set_to_none=True)
            loss = model(x).square().mean()
            pause("loss")
            loss.backward()
            optimizer.step()
        pause("between")
        if case == "evaluation" and step % 5 == 2:
            with torch.no_grad():
                for _ in range(5):
                    time.sleep(PAUSE)
                    model(x)
        if case == "checkpoint" and step % 5 == 2:
            torch.save({"model": net.state_dict(), "more": LateState()}, f"{out}.checkpoint")
        ends.append((time.perf_counter(), time.thread_time(), time.process_time()))
    if rank == 0:
        with open(out, "w") as file:
            json.dump(ends, file)
    if dist.is_initialized():
        dist.destroy_process_group()


main()
