"""What one of several GPUs holds under DDP and FSDP2: predicted, and measured on one GPU.

For FSDP2 the process group is torch's fake one: this rank does everything that rank 0 of N does and allocates what it
allocates, while nothing travels. DDP keeps the same on every rank, so it runs alone, with NCCL.

    python bench/memory_sharded.py [CASE ...] [--gpus N]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from memory import MIB, build_on_meta, real_run
from memory_cases import CASES, Case, loss_of, make_batch, make_optimizer

NAMES = ("llama-1b-bf16", "llama-3b-bf16-checkpoint", "gpt2-medium-fp32-foreach", "gpt2-mixed-dropped-outputs")


def predict(case: Case, strategy: str, gpus: int) -> dict[str, float]:
    from vario.analysis.memory import predict_memory

    model = build_on_meta(case)
    found = predict_memory(
        model,
        make_batch(case, model, "meta"),
        precision=case.precision,
        optimizer=lambda parameters: make_optimizer(case, parameters),
        clip=False,
        keep_outputs=case.keeps_outputs,
        loss=lambda outputs, batch: loss_of(case, outputs, batch),
        gpu="h200",
        gpus=gpus,
        strategy=strategy,
    )
    phases = {f"{phase}_mib": peak / MIB for phase, peak in found.phase_peaks.items()}
    return {"allocated_mib": found.peak_bytes / MIB, "reserved_mib": found.reserved_bytes / MIB, **phases}


def measure(case: Case, strategy: str, gpus: int) -> dict[str, float]:
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if strategy == "ddp":
        dist.init_process_group("nccl", rank=0, world_size=1, store=dist.HashStore())
    else:
        dist.init_process_group("fake", rank=0, world_size=gpus, store=FakeStore())
    peaks: dict[str, int] = {}

    def mark(phase: str) -> None:
        peaks[f"{phase}_mib"] = max(peaks.get(f"{phase}_mib", 0), torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    step = real_run(case, wrap=lambda model: wrapped(model, strategy), mark=mark, clips=False)
    for _ in range(3):
        step()
    phases = {phase: peak / MIB for phase, peak in peaks.items()}
    return {"allocated_mib": max(phases.values()), "reserved_mib": torch.cuda.max_memory_reserved() / MIB, **phases}


def wrapped(model: Any, strategy: str) -> Any:
    import torch
    from torch.distributed.fsdp import fully_shard

    if strategy == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            for layer in module:
                fully_shard(layer)
    return fully_shard(model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", default=list(NAMES))
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        verb, name, strategy = arguments.one
        print(json.dumps({"predict": predict, "measure": measure}[verb](CASES[name], strategy, arguments.gpus)))
        return
    print("| case | strategy | measured MiB, allocated / reserved | predicted | error |")
    print("| --- | --- | --- | --- | --- |")
    for name in arguments.names:
        for strategy in ("ddp", "fsdp"):
            found = {}
            for verb in ("predict", "measure"):
                command = [sys.executable, __file__, "--one", verb, name, strategy, "--gpus", str(arguments.gpus)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    raise SystemExit(f"{name}, {strategy}, {verb}: {done.stderr}")
                found[verb] = json.loads(done.stdout.strip().splitlines()[-1])
            truth, ours = found["measure"], found["predict"]
            errors = [ours[key] / truth[key] - 1 for key in ("allocated_mib", "reserved_mib")]
            print(
                f"| {name} | {strategy} | {truth['allocated_mib']:,.0f} / {truth['reserved_mib']:,.0f} "
                f"| {ours['allocated_mib']:,.0f} / {ours['reserved_mib']:,.0f} | {errors[0]:+.1%} / {errors[1]:+.1%} |"
            )
            print(f"    measured {truth}\n    predicted {ours}", file=sys.stderr)


if __name__ == "__main__":
    main()
