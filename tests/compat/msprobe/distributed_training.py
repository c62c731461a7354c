"""Run by torchrun: trains under DDP with a TrainerMon; each rank has its own batch."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import training
from vario.compat.msprobe import TrainerMon


def main(job):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    bare = training.Perceptron()
    bare.up.weight.tensor_model_parallel = True
    model = DistributedDataParallel(bare, gradient_as_bucket_view=job.get("bucket_view", False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(job["config"])
    groups = {job["group"]: dist.new_group([0, 1])} if "group" in job else {}
    monitor.set_monitor(model, grad_acc_steps=2, optimizer=optimizer, **groups)
    generator = torch.Generator().manual_seed(rank)
    norms = []
    for _ in range(job["steps"]):
        twin = training.Perceptron()
        twin.load_state_dict(bare.state_dict())
        batches = [torch.randn(4, 6, generator=generator) for _ in range(2)]
        for batch in batches:
            (twin(batch).square().mean() / 2).backward()
        norms.append(twin.up.weight.grad.double().norm().item())
        with model.no_sync():
            (model(batches[0]).square().mean() / 2).backward()
        (model(batches[1]).square().mean() / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    Path(os.environ["MONITOR_OUTPUT_DIR"], f"local-{rank}.json").write_text(json.dumps(norms))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
