"""Run by torchrun with either package's TrainerMon: sharded_training.py HOME CONFIG OUT ENGINE ..."""

import importlib
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import training


def wrap(engine, model):
    if engine == "ddp":
        return DistributedDataParallel(model)
    if engine == "fsdp":
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    fully_shard(model)
    return model


def main(home, config, out, *engines):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for engine in engines:
        os.environ["MONITOR_OUTPUT_DIR"] = f"{out}/{engine}"
        torch.manual_seed(0)
        model = wrap(engine, training.Perceptron())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        monitor = importlib.import_module(home).TrainerMon(config, params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(2):
            model(torch.randn(4, 6, generator=generator)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        getattr(monitor, "close", lambda: None)()
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
