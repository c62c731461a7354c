"""A few steps on two ranks through DDP, ZeroRedundancyOptimizer, FSDP1 or FSDP2: torchrun updates_script.py CASE"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import vario
from models import Perceptron, batch

STEPS = 5


def made(case):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    settings = {"lr": 0.01, "eps": 1e-6}
    if case.startswith("ddp"):
        model = DistributedDataParallel(model)
    elif case == "fsdp1":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    elif case == "fsdp2":
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model.up, mesh=mesh)
        fully_shard(model, mesh=mesh)
    if case == "ddp-zero":
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **settings)
    return model, torch.optim.AdamW(model.parameters(), **settings)


def train(case):
    model, optimizer = made(case)
    rank = dist.get_rank()
    options = {
        "directory": "runs",
        "name": case,
        "every": 1,
        "strict": True,
        "quantities": ["update", "unexpected_change"],
    }
    with vario.watch(model, optimizer, **options):
        for step in range(STEPS):
            if case == "ddp-flip" and step == 3 and rank == 1:
                with torch.no_grad():
                    model.module.up.weight[2, 1] += 1
            optimizer.zero_grad()
            model(batch(0 if case == "ddp-flip" else 2 * step + rank)).square().mean().backward()
            optimizer.step()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        train(case)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
