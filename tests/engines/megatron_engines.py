"""Megatron-core in its ways of splitting a model, one training after the other: torchrun megatron_engines.py CASE ...

`count:CASE` counts collectives with and without watching; `peer:FOLDER:CASE` trains under msprobe or vario's TrainerMon.
"""

import contextlib
import json
import sys
from pathlib import Path

import megatron_toys as toys
import torch
import torch.distributed as dist
from megatron.core import parallel_state

import vario

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied"]
QUANTITIES += ["moment", "activation", "activation_gradient"]


def batches_of(case, bad_step=None):
    rank = parallel_state.get_data_parallel_rank()

    def of_step(step):
        factor = float("inf") if step == bad_step else 1.0
        return [(toys.tokens(step, micro_step, rank), factor) for micro_step in range(toys.MICRO_STEPS)]

    return of_step


def watch(case, chunks, optimizer, **options):
    """As a script may call it: the wrapper and its optimizer, or less."""
    model = chunks if len(chunks) > 1 else chunks[0]
    if "bare" in case:
        model = toys.bare(chunks[0])
    if "alone" in case or "bare" in case:
        return vario.watch(model, **options)
    return vario.watch(model, optimizer.optimizer if "inner" in case else optimizer, **options)


def train(name, watched=True, folder="runs"):
    case = toys.Case(name)
    toys.begin(case)
    config = toys.config_of(case)
    chunks, optimizer = toys.build(case, config)
    before = [snapshot(chunk, optimizer) for chunk in chunks]
    options = {"directory": folder, "name": name, "every": 1, "strict": "fused" not in case, "quantities": QUANTITIES}
    if "resumed" in case:
        options["first_step"] = 5
    monitor = watch(case, chunks, optimizer, **options) if watched else contextlib.nullcontext()
    with monitor:
        losses = toys.train(case, chunks, optimizer, config, batches_of(case, 1 if "skip" in case else None))
    assert [snapshot(chunk, optimizer) for chunk in chunks] == before, "something was left behind"
    return losses


def snapshot(chunk, optimizer):
    """What a monitor hangs things on: hooks and replaced methods."""
    hooked = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in chunk.modules()]
    backward = [len(p._backward_hooks or ()) for p in chunk.parameters()]
    accumulated = [len(getattr(p, "_post_accumulate_grad_hooks", None) or ()) for p in chunk.parameters()]
    return hooked, backward, accumulated, "step" in vars(optimizer)


def collectives(name, watched):
    """How often each operator of c10d runs in a whole training, its set-up included; and the losses."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses = train(name, watched, "counted")
    counts = {event.key: event.count for event in profile.key_averages() if event.key.startswith("c10d::")}
    return {"counts": counts, "losses": losses}


def main():
    with toys.distributed():
        for name in sys.argv[1:]:
            if name.startswith("count:"):
                name = name.removeprefix("count:")
                found = {"without": collectives(name, False), "with": collectives(name, True)}
                Path(f"collectives-{name}-{dist.get_rank()}.json").write_text(json.dumps(found))
            else:
                train(name)


if __name__ == "__main__":
    main()
