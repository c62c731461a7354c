"""DeepSpeed's stages, one training after the other: torchrun deepspeed_engines.py CASE ...

A case is the stage, then what is special about it: `zero3-bf16-x2` is ZeRO 3 in bfloat16 with two micro-steps.
"""

import contextlib
import json
import logging
import os
import sys
from collections import Counter
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
import toys

import vario

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied"]
QUANTITIES += ["moment", "activation", "activation_gradient"]
SCALE = 64.0
MSPROBE = {"targets": {}, "format": "csv", "ops": ["norm"], "wg_distribution": True, "mv_distribution": True}
MSPROBE |= {"param_distribution": True}


def settings(stage, traits):
    zero = {"stage": stage, "stage3_param_persistence_threshold": 20 if "persistent" in traits else 0}
    if "small" in traits:
        zero["sub_group_size"] = 60
    if "buckets" in traits:
        zero.update(reduce_bucket_size=50, overlap_comm=True)
    if "scattered" in traits:
        zero.update(contiguous_gradients=False, round_robin_gradients=True)
    if "offload" in traits:
        zero["offload_optimizer"] = {"device": "cpu"}
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2 if "x2" in traits else 1,
        "gradient_clipping": toys.CLIP,
        "bf16": {"enabled": "bf16" in traits},
        "zero_optimization": zero,
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }
    if "fp32sum" in traits:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    return config


def initialize(case):
    stage, *traits = case.split("-")
    net = toys.make()
    base = toys.adam(net, 2 if "groups" in traits else 1)
    options = {"model": net, "optimizer": base, "config": settings(int(stage[4:]), traits)}
    engine, outer, _, _ = deepspeed.initialize(**options)
    if "scaled" in traits:
        outer.override_loss_scale(SCALE)
    return net, base, engine, outer


def watch(case, net, base, engine, outer, folder="runs", **more):
    stage, *traits = case.split("-")
    given = (engine, outer)
    if "alone" in traits:
        given = (engine,)
    elif "bare" in traits:
        given = (net, base)
    elif "base" in traits:
        given = (engine, base)
    quantities = list(QUANTITIES)
    if "loose" not in traits:
        if "x2" in traits and (stage in ("zero2", "zero3") or "fp32sum" in traits):
            quantities.remove("gradient_accumulated")  # it exists nowhere
        if "offload" in traits:
            quantities.remove("gradient")
    options = {"directory": folder, "name": case, "every": 1, "strict": "loose" not in traits}
    return vario.watch(*given, **{**options, "quantities": quantities, **more})


def step(case, engine, number):
    _, *traits = case.split("-")
    for micro_step in range(engine.gradient_accumulation_steps()):
        value = toys.loss(engine, toys.tokens(number, micro_step, dist.get_rank()))
        if "skip" in traits and number == 1:
            value = value * float("inf")
        if "direct" in traits:
            engine.scale(value).backward()
        else:
            engine.backward(value)
        engine.step()
    return value.item()


def hooks_of(net):
    """How many hooks there are on each parameter and module."""
    tables = ["_backward_hooks", "_post_accumulate_grad_hooks", "_forward_hooks", "_forward_pre_hooks"]
    owners = [*net.parameters(), *net.modules()]
    return [len(getattr(owner, table, None) or ()) for owner in owners for table in tables]


def train(case, watched=True, folder="runs"):
    made = initialize(case)
    net, _, engine, _ = made
    before = hooks_of(net)
    losses = []
    with watch(case, *made, folder) if watched else contextlib.nullcontext() as monitor:
        for number in range(toys.STEPS):
            losses.append(step(case, engine, number))
            if watched:
                assert monitor.next_step_number == engine.global_steps == number + 1
    assert engine.skipped_steps == ("skip" in case)
    assert "_take_model_step" not in vars(engine)
    assert hooks_of(net) == before
    return losses


def resume(case):
    """The same three steps, the last of them from a checkpoint on."""
    made = initialize(case)
    with watch(case, *made):
        for number in range(2):
            step(case, made[2], number)
    made[2].save_checkpoint("checkpoint")
    again = initialize(case)
    again[2].load_checkpoint("checkpoint")
    with watch(case, *again, first_step=again[2].global_steps, resume=True):
        step(case, again[2], 2)


def early(case):
    """Watched before DeepSpeed takes the parameters out of the optimizer."""
    net = toys.make()
    base = toys.adam(net)
    with vario.watch(net, base, directory="runs", name=f"early-{case}", every=1):
        engine, *_ = deepspeed.initialize(model=net, optimizer=base, config=settings(int(case[4:]), []))
        step(case, engine, 0)


def msprobe(case):
    from vario.compat.msprobe import TrainerMon

    os.environ["MONITOR_OUTPUT_DIR"] = "msprobe"
    Path("config.json").write_text(json.dumps(MSPROBE))
    _, _, engine, outer = initialize(case)
    TrainerMon("config.json").set_monitor(engine, 1, outer)
    for number in range(toys.STEPS):
        step(case, engine, number)


def collectives(case, watched):
    """How often each operator of c10d runs in a whole training, its set-up included; and the losses."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses = train(case, watched, "counted")
    # As it was recorded: working out averages of everything takes a quarter of a minute.
    events = (event.name() for event in profile.profiler.kineto_results.events())
    return {"counts": Counter(name for name in events if name.startswith("c10d::")), "losses": losses}


def count(case):
    found = {"without": collectives(case, False), "with": collectives(case, True)}
    Path(f"collectives-{case}-{dist.get_rank()}.json").write_text(json.dumps(found))


def main():
    torch.set_num_threads(1)
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its build takes minutes and serves inference
    deepspeed.init_distributed(dist_backend="gloo")
    ways = {"": train, "count": count, "resume": resume, "early": early, "msprobe": msprobe}
    for case in sys.argv[1:]:
        way, _, case = case.rpartition(":")
        ways[way](case)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
