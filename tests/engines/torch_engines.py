"""Every engine of torch itself, one training after the other: torchrun torch_engines.py CASE ...

A case is the engine's name, then what is special about it: `fsdp2-bf16-x2` is FSDP2 in bfloat16 with two micro-steps.
"""

import contextlib
import json
import sys
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist
import toys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as Fsdp
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn.parallel import DistributedDataParallel

import vario
from vario.backends.torch.engines import fsdp2

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied"]
QUANTITIES += ["moment", "activation", "activation_gradient"]
CPU = torch.device("cpu")
STRATEGIES = {
    "": ShardingStrategy.FULL_SHARD,
    "noshard": ShardingStrategy.NO_SHARD,
    "gradop": ShardingStrategy.SHARD_GRAD_OP,
}


def split(model, mesh, sequence=False):
    """Matrices over the ranks of a mesh; with `sequence` also the tokens between them, each rank some."""
    between = Shard(1) if sequence else Replicate()
    plan = {}
    for at in range(len(model.blocks)):
        plan[f"blocks.{at}.up"] = ColwiseParallel(input_layouts=between)
        plan[f"blocks.{at}.down"] = RowwiseParallel(output_layouts=between)
        if sequence:
            plan[f"blocks.{at}.norm"] = SequenceParallel()
    if sequence:
        plan["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
        plan["head"] = ColwiseParallel(input_layouts=between, output_layouts=Replicate())
    return parallelize_module(model, mesh, plan)


def half_of_the_world(model):
    """DDP over a half of the ranks, which trains a model of its own."""
    half = dist.get_world_size() // 2
    groups = [dist.new_group(range(first, first + half)) for first in (0, half)]
    own = dist.get_rank() // half
    with torch.no_grad():
        model.head.weight.mul_(1 + own)
    return DistributedDataParallel(model, process_group=groups[own], find_unused_parameters=True)


def hide_twins():
    """A release of torch that calls what FSDP keeps per parameter by another name."""

    def renamed(unit):
        raise AttributeError("'FSDPState' object has no attribute '_fsdp_param_group'")

    fsdp2._held_by = renamed


def wrapped(engine, traits):
    """(what is called, what is clipped, its context for micro-steps that do not reduce)"""
    model = toys.make(spare="tp" not in traits and engine != "tp")
    if "halves" in traits:
        return half_of_the_world(model), None
    if engine == "ddp" and "tp" in traits:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
        _pre_dp_module_transform(split(model, mesh["tensor"]))
        model = DistributedDataParallel(model, process_group=mesh["data"].get_group())
        return model, model.no_sync
    if engine == "ddp":
        if "experts" in traits:
            with torch.no_grad():
                model.blocks[1].up.weight.mul_(1 + dist.get_rank())
            experts = [f"blocks.1.up.{name}" for name in ("weight", "bias")]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, experts)
        views = "views" in traits
        model = DistributedDataParallel(model, find_unused_parameters=True, gradient_as_bucket_view=views)
        if "compiled" in traits:
            model.compile(backend="aot_eager")
        return model, model.no_sync
    if engine == "fsdp":
        strategy = next((STRATEGIES[trait] for trait in traits if trait in STRATEGIES), ShardingStrategy.FULL_SHARD)
        precision = MixedPrecision(torch.bfloat16, torch.float32) if "bf16" in traits else None
        options = {
            "use_orig_params": "flat" not in traits,
            "device_id": CPU,
            "sharding_strategy": strategy,
            "mixed_precision": precision,
        }
        if "flat" in traits:
            model.requires_grad_(True)  # such units hold no frozen ones
        for at, block in enumerate(model.blocks):
            model.blocks[at] = Fsdp(block, **options)
        model = Fsdp(model, **options)
        return model, model.no_sync
    if engine == "tp":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))
        return split(model, mesh, sequence="sp" in traits), None
    mesh = None
    if "tp" in traits:
        both = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor"))
        split(model, both["tensor"])
        mesh = both["data"]
    elif "hsdp" in traits:
        mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replicate", "shard"))
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if "bf16" in traits else MixedPrecisionPolicy()
    for block in model.blocks:
        if "compiled" in traits:
            block.compile(backend="aot_eager")
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)

    @contextlib.contextmanager
    def without_sync():
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    return model, without_sync


def data_rank(engine, traits):
    """Ranks that split one tensor see the same batch."""
    return 0 if engine == "tp" else dist.get_rank() // 2 if "tp" in traits else dist.get_rank()


def train(case, watched=True, folder="runs"):
    engine, *traits = case.split("-")
    accumulation = 2 if "x2" in traits else 1
    model, without_sync = wrapped(engine, traits)
    optimizer = toys.adam(model)
    if "zero" in traits:
        options = {"lr": optimizer.defaults["lr"], "eps": optimizer.defaults["eps"]}
        optimizer = ZeroRedundancyOptimizer(optimizer.param_groups[0]["params"], torch.optim.AdamW, **options)
    options = {"directory": folder, "name": case, "every": 1, "strict": True, "quantities": QUANTITIES}
    if "renamed" in traits:
        options["strict"] = False
        hide_twins()
    monitor = vario.watch(model, optimizer, **options) if watched else contextlib.nullcontext()
    losses = []
    with monitor:
        for step in range(toys.STEPS):
            for micro_step in range(accumulation):
                last = micro_step == accumulation - 1
                batch = toys.tokens(step, micro_step, data_rank(engine, traits))
                batch = batch[:, :6] if "sp" in traits else batch  # torch splits tokens evenly only
                with contextlib.nullcontext() if last or without_sync is None else without_sync():
                    value = toys.loss(model, batch, accumulation)
                    value.backward()
                losses.append(value.item())
            if engine == "fsdp":
                model.clip_grad_norm_(toys.CLIP)
            elif "tp" not in (engine, *traits):  # torch clips no mixture of tensors and DTensors
                torch.nn.utils.clip_grad_norm_(model.parameters(), toys.CLIP)
            if "flip" in traits and (step, dist.get_rank()) == (1, dist.get_world_size() - 1):
                weight = model.module.blocks[1].up.weight.data.view(torch.int32)
                optimizer.register_step_post_hook(lambda *_, weight=weight: weight[3, 2].bitwise_xor_(1) and None)
            optimizer.step()
            optimizer.zero_grad()
    return losses


def collectives(case, watched):
    """How often each operator of c10d runs in a whole training, its set-up included; and the losses."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses = train(case, watched, "counted")
    # As it was recorded: working out averages of everything takes a quarter of a minute.
    events = (event.name() for event in profile.profiler.kineto_results.events())
    return {"counts": Counter(name for name in events if name.startswith("c10d::")), "losses": losses}


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        if case.startswith("count:"):
            case = case.removeprefix("count:")
            found = {"without": collectives(case, False), "with": collectives(case, True)}
            Path(f"collectives-{case}-{dist.get_rank()}.json").write_text(json.dumps(found))
        else:
            train(case)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
