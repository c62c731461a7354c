"""A few steps on two ranks, and what numpy counts in the whole tensors: torchrun distribution_script.py CASE"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import vario
from bin_oracle import counted
from models import Perceptron, batch

STEPS = 3


def made(case):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    if case == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (2,))
        fully_shard(model.up, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def train(case):
    model, optimizer = made(case)
    rank, found = dist.get_rank(), {}
    seen = []
    inner = model.module if case == "ddp" else model
    inner.act.register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    quantities = ["gradient", "weight", "moment", "activation", "distribution"]
    options = {"directory": "runs", "name": case, "every": 1, "strict": True, "quantities": quantities}
    with vario.watch(model, optimizer, **options):
        for step in range(STEPS):
            optimizer.zero_grad()
            # Two passes each: their rows add up.
            for part in range(2):
                (model(batch(4 * step + 2 * part + rank)).square().mean() / 2).backward()
            for name, one in inner.named_parameters():
                found[f"{step}/gradient/{name}"] = counted(whole(one.grad))
            optimizer.step()
            for name, one in inner.named_parameters():
                found[f"{step}/weight/{name}"] = counted(whole(one))
                found[f"{step}/moment/{name}:exp_avg_sq"] = counted(whole(optimizer.state[one]["exp_avg_sq"]))
            found[f"{step}/activation/act:output"] = sum(map(counted, seen))
            seen.clear()
    np.savez(Path("runs") / f"{case}-{rank}.npz", **found)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        train(case)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
