"""Pipeline schedules of torch, one training after the other: torchrun pipelines.py CASE ...

A case is the schedule, then what is special: `1f1b-ddp` runs two pipelines of two stages under DDP. Ranks of one
pipeline follow each other.
"""

import sys

import torch
import torch.distributed as dist
import toys
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

import vario

QUANTITIES = [
    "weight",
    "gradient",
    "gradient_local",
    "gradient_accumulated",
    "gradient_applied",
    "moment",
    "activation",
]
MICRO_BATCHES = 4
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}


class Part(nn.Module):
    """Half of the toy, under the names it has there; or under names that both halves have."""

    def __init__(self, toy, stage, are_named_alike=False):
        super().__init__()
        self.stage = stage
        if stage == 0:
            self.embedding, self.frozen = toy.embedding, toy.frozen
        else:
            self.head = toy.head
        self.blocks = nn.ModuleDict({"0" if are_named_alike else str(stage): toy.blocks[stage]})

    def forward(self, x):
        if self.stage == 0:
            x = self.embedding(x) + self.frozen
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if self.stage == 1 else x


def loss(logits, tokens):
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, toys.VOCABULARY), tokens[:, 1:].reshape(-1))


def train(case):
    schedule, *traits = case.split("-")
    rank = dist.get_rank()
    pipeline, stage = divmod(rank, 2)
    pipes = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    replicas = [dist.new_group(range(first, dist.get_world_size(), 2)) for first in (0, 1)]
    part = Part(toys.make(spare=False), stage, "alike" in traits)
    model = DistributedDataParallel(part, process_group=replicas[stage]) if "ddp" in traits else part
    options = {"directory": "runs", "name": case, "every": 1, "strict": True, "quantities": QUANTITIES}
    optimizer = toys.adam(model)
    early = vario.watch(model, optimizer, **options) if "early" in traits else None
    stages = PipelineStage(model, stage, 2, torch.device("cpu"), group=pipes[pipeline])
    run = SCHEDULES[schedule](stages, MICRO_BATCHES, loss_fn=loss)
    with early or vario.watch(model, optimizer, **options):
        for step in range(toys.STEPS):
            tokens = torch.cat([toys.tokens(step, micro, pipeline) for micro in range(MICRO_BATCHES)])
            if stage == 0:
                run.step(tokens)
            else:
                run.step(target=tokens)
            optimizer.step()
            optimizer.zero_grad()


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        train(case)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
