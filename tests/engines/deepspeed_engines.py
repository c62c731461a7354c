"""DeepSpeed's stages, one training after the other: torchrun deepspeed_engines.py CASE ...

A case is the stage, then what is special about it: `zero3-bf16-x2` is ZeRO 3 in bfloat16 with two micro-steps.
"""

import contextlib
import json
import logging
import os
import sys
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import toys
import torch
import torch.distributed as dist

import vario

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied"]
QUANTITIES += ["moment", "activation", "activation_gradient"]
SCALE = 64.0


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
    return net, base, engine, outer


def watch(case, traits, net, base, engine, outer, folder, **more):
    given = (engine, outer)
    if "alone" in traits:
        given = (engine,)
    elif "bare" in traits:
        given = (net, base)
    elif "base" in traits:
        given = (engine, base)
    quantities = list(QUANTITIES)
    if "x2" in traits and (case[4] in "23" or "fp32sum" in traits):
        quantities.remove("gradient_accumulated")  # it exists nowhere
    if "offload" in traits:
        quantities.remove("gradient")
    options = {"directory": folder, "name": case, "every": 1, "strict": True, "quantities": quantities}
    return vario.watch(*given, **{**options, **more})


def step(engine, number, micro_step, factor=1.0):
    value = toys.loss(engine, toys.tokens(number, micro_step, dist.get_rank())) * factor
    engine.backward(value)
    engine.step()
    return value.item()


def train(case, watched=True, folder="runs"):
    _, *traits = case.split("-")
    made = initialize(case)
    engine, outer = made[2:]
    if "scaled" in traits:
        outer.override_loss_scale(SCALE)
    losses = []
    with watch(case, traits, *made, folder) if watched else contextlib.nullcontext() as monitor:
        for number in range(toys.STEPS):
            for micro_step in range(engine.gradient_accumulation_steps()):
                losses.append(step(engine, number, micro_step))
            if watched:
                assert monitor.next_step_number == engine.global_steps == number + 1
    return losses


def collectives(case, watched):
    """How often each operator of c10d runs in a whole training, its set-up included; and the losses."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses = train(case, watched, "counted")
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("c10d::")}
    return {"counts": counts, "losses": losses}


def main():
    torch.set_num_threads(1)
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its build takes minutes and serves inference
    deepspeed.init_distributed(dist_backend="gloo")
    import time
    for case in sys.argv[1:]:
        t=time.time()
        kind, _, case = case.rpartition(":")
        if kind == "count":
            found = {"without": collectives(case, False), "with": collectives(case, True)}
            Path(f"collectives-{case}-{dist.get_rank()}.json").write_text(json.dumps(found))
        else:
            train(case)
        if dist.get_rank()==0: print(case, time.time()-t, flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
