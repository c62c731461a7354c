"""Run by torchrun: trains under DDP, FSDP1 or FSDP2 with the monitors; each rank has its own batches."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from monitored import Tower, content
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import vario
from vario.compat.mindformers import load_yaml

STEPS = 3


def wrap(engine, model):
    if engine == "ddp":
        return DistributedDataParallel(model)
    if engine == "fsdp":
        return FullyShardedDataParallel(model, use_orig_params=True, device_id=torch.device("cpu"))
    fully_shard(model)
    return model


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(4, 6, generator=generator) for _ in range(STEPS)]


def local_norms(model, batch):
    """The gradient norms of this rank's batch alone, in a copy of the model."""
    model.zero_grad()
    model(batch).square().mean().backward()
    return {name: each.grad.double().norm().item() for name, each in model.named_parameters()}


def main(folder, *engines):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for engine in engines:
        place = Path(folder) / engine
        torch.manual_seed(0)
        bare = Tower(3)
        twin = Tower(3)
        twin.load_state_dict(bare.state_dict())
        model = wrap(engine, bare)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        own = torch.optim.AdamW(twin.parameters(), lr=0.01)
        seen = []
        config = load_yaml(content(place), directory=str(place), name="run")
        with vario.watch(model, optimizer, config=config):
            for step in range(STEPS):
                local = local_norms(twin, batches(rank)[step])
                twin.zero_grad()
                (sum(twin(batches(each)[step]).square().mean() for each in (0, 1)) / 2).backward()
                reduced = {name: each.grad.double().norm().item() for name, each in twin.named_parameters()}
                own.step()
                moments = {
                    name: own.state[each]["exp_avg"].double().norm().item() for name, each in twin.named_parameters()
                }
                weights = {name: each.detach().double().norm().item() for name, each in twin.named_parameters()}
                model(batches(rank)[step]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                seen.append({"local": local, "reduced": reduced, "moments": moments, "weights": weights})
        (place / f"seen-{rank}.json").write_text(json.dumps(seen))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
