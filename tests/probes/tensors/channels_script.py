"""A few steps on two ranks with the quantity `channel`: torchrun channels_script.py CASE"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from distribution_script import made, whole

import vario
from models import batch


def train(case):
    model, optimizer = made(case)
    inner, seen = model.module if case == "ddp" else model, []
    inner.act.register_forward_hook(lambda module, args, output: seen.append(output.detach().clone()))
    options = {"directory": "runs", "name": case, "every": 1, "strict": True, "quantities": ["channel"]}
    with vario.watch(model, optimizer, **options):
        for step in range(2):
            seen.clear()
            optimizer.zero_grad()
            model(batch(2 * step + dist.get_rank())).square().mean().backward()
            optimizer.step()
    outputs = [torch.zeros_like(seen[0]) for _ in range(2)]
    dist.all_gather(outputs, seen[0])
    weight = whole(inner.up.weight).detach()
    if dist.get_rank() == 0:
        found = {"act": torch.cat(outputs).numpy(), "up.weight": weight.numpy()}
        np.savez(Path("runs") / f"{case}.npz", **found)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(sys.argv[1])
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
