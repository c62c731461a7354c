"""Megatron-core in its ways of splitting a model, one training after the other: torchrun megatron_engines.py CASE ...

`count:CASE` counts collectives with and without watching, `plain:CASE` does not watch, `msprobe:CASE` and `vario:CASE`
train under a TrainerMon of one or the other.
"""

import contextlib
import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path

import megatron_toys as toys
import torch
import torch.distributed as dist
from megatron.core import parallel_state

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied"]
QUANTITIES += ["moment", "activation", "activation_gradient"]
MODULES = {"msprobe": "msprobe.pytorch", "vario": "vario.compat.msprobe"}
CONFIG = {"targets": {}, "wg_distribution": True, "mv_distribution": True, "ops": ["norm", "min", "max"], "ndigits": 16}


def prepare(name):
    case = toys.Case(name)
    toys.begin(case)
    config = toys.config_of(case)
    return case, toys.build(case, config), config


def go(case, chunks, optimizer, config):
    rank = parallel_state.get_data_parallel_rank()
    return toys.train(case, chunks, optimizer, config, lambda step: toys.batches(case, step, [rank]))


def watch(case, chunks, optimizer, **options):
    """As a script may call it: the wrapper and its optimizer, or less."""
    import vario

    model = chunks if len(chunks) > 1 else chunks[0]
    if "bare" in case:
        model = toys.bare(chunks[0])
    if "alone" in case or "bare" in case or optimizer is None:
        return vario.watch(model, **options)
    if "member" in case:
        optimizer = optimizer.chained_optimizers[-1]
    return vario.watch(model, optimizer.optimizer if "inner" in case else optimizer, **options)


def train(name, watched=True, folder="runs"):
    case, chunks, config = prepare(name)
    fails = "fused" in case or "elsewhere" in case
    options = {"directory": folder, "name": name, "every": 1, "strict": not fails, "quantities": QUANTITIES}
    if "resumed" in case:
        options["first_step"] = 5
    optimizer = None if "late" in case else toys.optimizer_of(case, chunks)
    before = [hung_on(chunk) for chunk in chunks]
    with hidden(optimizer) if "elsewhere" in case else contextlib.nullcontext():
        monitor = watch(case, chunks, optimizer, **options) if watched else contextlib.nullcontext()
    optimizer = optimizer or toys.optimizer_of(case, chunks)
    with monitor:
        losses = go(case, chunks, optimizer, config)
    if watched:
        assert [hung_on(chunk) for chunk in chunks] == before, "something was left behind"
        assert "step" not in vars(optimizer)
    return losses


@contextlib.contextmanager
def hidden(optimizer):
    """As in a release of Megatron that calls its groups something else."""
    (member,) = optimizer.chained_optimizers
    groups = vars(member).pop("shard_fp32_groups")
    yield
    member.shard_fp32_groups = groups


def hung_on(chunk):
    """How many hooks there are on anything."""
    hooked = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in chunk.modules()]
    backward = [len(p._backward_hooks or ()) for p in chunk.parameters()]
    accumulated = [len(getattr(p, "_post_accumulate_grad_hooks", None) or ()) for p in chunk.parameters()]
    return hooked, backward, accumulated


def collectives(name, watched):
    """How often each operator of c10d runs in a whole training, its set-up included; and the losses."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses = train(name, watched, "counted")
    # As it was recorded: working out averages of everything takes a quarter of a minute.
    events = (event.name() for event in profile.profiler.kineto_results.events())
    counts = Counter(name for name in events if name.startswith("c10d::"))
    return {"counts": counts, "losses": losses}


def count(name):
    found = {"without": collectives(name, False), "with": collectives(name, True)}
    Path(f"collectives-{name}-{dist.get_rank()}.json").write_text(json.dumps(found))


def under_a_trainer_mon(kind, name):
    case, chunks, config = prepare(name)
    optimizer = toys.optimizer_of(case, chunks)
    out = Path(f"{kind}-{name}").absolute()
    out.mkdir(exist_ok=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(out)
    file = out / f"config-{dist.get_rank()}.json"
    file.write_text(json.dumps(CONFIG))
    monitor = importlib.import_module(MODULES[kind]).TrainerMon(str(file))
    groups = {}
    if "groups" in case:
        groups["dp_group"] = parallel_state.get_data_parallel_group()
        groups["tp_group"] = parallel_state.get_tensor_model_parallel_group()
    model = chunks if len(chunks) > 1 else chunks[0]
    monitor.set_monitor(model, grad_acc_steps=toys.MICRO_STEPS, optimizer=optimizer, **groups)
    go(case, chunks, optimizer, config)
    if kind == "vario":
        monitor.close()


def main():
    with toys.distributed():
        for argument in sys.argv[1:]:
            kind, _, name = argument.rpartition(":")
            if kind == "count":
                count(name)
            elif kind in MODULES:
                under_a_trainer_mon(kind, name)
            else:
                train(name, watched=kind != "plain")


if __name__ == "__main__":
    main()
