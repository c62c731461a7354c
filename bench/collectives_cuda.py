"""The communication probe where it cannot be tested on a CPU: NCCL, its streams and its autograd threads.

    python bench/collectives_cuda.py                                                       one rank, NCCL
    torchrun --standalone --nproc-per-node 2 bench/collectives_cuda.py --backend gloo      CUDA tensors through gloo

Every case overwrites its tensors as early as possible, behind a busy stream, and compares the recorded values with the
expected ones. Prints one line per case; the exit status is 1 if one is wrong.
"""

import argparse
import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import vario

NAN = float("nan")
Expected = dict[str, list[torch.Tensor]]
"""What `operation:side` of a case consists of."""


def numbers(rank: int, size: int = 1 << 20, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * seed + rank)).cuda()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)).cuda()


def total(*args: int) -> torch.Tensor:
    return sum(numbers(rank, *args) for rank in range(dist.get_world_size()))


def mine(*args: int) -> torch.Tensor:
    return numbers(dist.get_rank(), *args)


def busy() -> None:
    torch.cuda._sleep(20_000_000)


def all_reduce() -> Expected:
    x = mine()
    busy()
    dist.all_reduce(x)
    x.fill_(NAN)
    return {"all_reduce:input": [mine()], "all_reduce:output": [total()]}


def all_reduce_async() -> Expected:
    for seed in range(10):
        x = mine(1 << 20, seed)
        busy()
        dist.all_reduce(x, async_op=True).wait()
        x.fill_(NAN)
    return {"all_reduce:output": [total(1 << 20, seed) for seed in range(10)]}


def all_gather_into_tensor() -> Expected:
    x = torch.full((dist.get_world_size() << 20,), NAN, device="cuda")
    busy()
    dist.all_gather_into_tensor(x, mine(), async_op=True).wait()
    x.fill_(NAN)
    return {"all_gather_into_tensor:output": [numbers(rank) for rank in range(dist.get_world_size())]}


def functional_all_reduce() -> Expected:
    busy()
    functional.wait_tensor(functional.all_reduce(mine(), "sum", dist.group.WORLD)).fill_(NAN)
    return {"all_reduce:output": [total()]}


def compiled() -> Expected:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(2 * x, "sum", dist.group.WORLD) + 1

    torch.compile(reduced)(mine())
    return {"all_reduce:input": [2 * mine()], "all_reduce:output": [2 * total()]}


def expected_gradients() -> list[torch.Tensor]:
    gradients = []
    for rank in range(dist.get_world_size()):
        twin = model()
        twin(numbers(rank, 640).view(-1, 64)).square().mean().backward()
        gradients.append([parameter.grad for parameter in twin.parameters()])
    return [sum(parts) / len(gradients) for parts in zip(*gradients, strict=True)]


def ddp() -> Expected:
    net = model()
    wrapped = DistributedDataParallel(net, gradient_as_bucket_view=True)
    loss = wrapped(mine(640).view(-1, 64)).square().mean()
    busy()
    loss.backward()
    for parameter in net.parameters():
        parameter.grad.fill_(NAN)
    return {"all_reduce:output": expected_gradients()}


CASES = [all_reduce, all_reduce_async, all_gather_into_tensor, functional_all_reduce, compiled, ddp]


def check(case: str, expected: Expected, rows: dict[str, Any]) -> bool:
    wrong = []
    for name, tensors in expected.items():
        operation, _, side = name.partition(":")
        found = [row for target, row in rows.items() if target.startswith(f"{operation}@") and target.endswith(side)]
        elements = torch.cat([tensor.flatten().double() for tensor in tensors])
        truth = torch.tensor([elements.numel(), elements.square().sum(), elements.min(), elements.max(), 0]).double()
        seen = torch.tensor(found[0][[0, 2, 3, 4, 5]] if len(found) == 1 else [NAN] * 5).double()
        if not torch.allclose(seen, truth, rtol=1e-4):
            wrong.append(f"{name}: {seen.tolist()} instead of {truth.tolist()}")
    print(f"rank {dist.get_rank()} {case:24s} {'wrong: ' + '; '.join(wrong) if wrong else 'right'}  {sorted(rows)}")
    return not wrong


def cost(calls: int = 2000) -> float:
    """Microseconds of the host a call, as it is now."""
    x = torch.zeros(16, device="cuda")
    seconds = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls // 10):
            dist.all_reduce(x)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds) / (calls // 10) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="nccl")
    backend = parser.parse_args().backend
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(name, value)
    torch.cuda.set_device(0)
    dist.init_process_group(backend)
    print(f"torch {torch.__version__}, {backend}, {torch.cuda.get_device_name()}")
    cases = CASES if backend == "nccl" else [all_reduce, all_reduce_async, ddp]
    options = {"quantities": ["communication"], "every": 1, "strict": True, "sinks": ["in_memory"]}
    alone = cost()
    monitor = vario.watch(nn.Linear(1, 1), **options)
    expected = {}
    for case in cases:
        expected[case.__name__] = case()
        monitor.step()
    torch.cuda.synchronize()
    x = mine()
    if backend == "nccl":
        torch.cuda.set_sync_debug_mode("error")
    dist.all_reduce(x)
    dist.all_reduce(x, async_op=True).wait()
    torch.cuda.set_sync_debug_mode("default")
    monitor.step()
    watched = cost()
    monitor.close()
    idle = vario.watch(nn.Linear(1, 1), **{**options, "every": 1000})
    for _ in range(3):
        idle.step()
    unwatched = cost()
    idle.close()
    rows = {}
    for record in monitor.sinks["in_memory"].records:
        for frame in record.frames:
            for target, row in zip(frame.targets, frame.summaries, strict=True):
                rows.setdefault(frame.step, {})[target] = row
    right = [check(name, truth, rows.get(step, {})) for step, (name, truth) in enumerate(expected.items())]
    print(f"host microseconds per call: {alone:.1f} alone, {unwatched:.1f} in an unwatched step, {watched:.1f} watched")
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
