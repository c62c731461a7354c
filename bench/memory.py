"""Memory predicted without a GPU, compared with measurements on a GPU.

    python bench/memory.py                      predict every case; compare with the kept measurements of an H200
    python bench/memory.py --measure FILE       on a machine with a GPU: run three steps of each case, append to FILE
    python bench/memory.py --operators CASE     there too: what each operator takes beside its outputs

Every case runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memory_cases import CASES, Case, loss_of, make_batch, make_model, make_optimizer

MEASURED = Path(__file__).parent / "memory_h200.jsonl"
MIB = 1 << 20


def predict(case: Case) -> dict[str, Any]:
    import torch

    from vario.analysis.memory import predict_memory

    started = time.perf_counter()
    model = build_on_meta(case)
    found = predict_memory(
        model,
        make_batch(case, model, "meta"),
        precision=case.precision,
        optimizer=lambda parameters: make_optimizer(case, parameters),
        accumulation=case.accumulation,
        clip=case.clips,
        keep_outputs=case.keeps_outputs,
        padded=case.padded,
        loss=lambda outputs, batch: loss_of(case, outputs, batch),
        gpu="h200",
    )
    return {
        "case": case.name,
        "allocated_mib": found.peak_bytes / MIB,
        "reserved_mib": found.reserved_bytes / MIB,
        "seconds": time.perf_counter() - started,
        "torch": torch.__version__,
        **peers(case, model),
    }


def build_on_meta(case: Case) -> Any:
    import torch

    torch.set_default_dtype({"bf16": torch.bfloat16, "fp16": torch.float16}.get(case.precision, torch.float32))
    with torch.device("meta"):
        model = make_model(case)
    torch.set_default_dtype(torch.float32)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not case.trains or any(word in name for word in case.trains.split(",")))
    return model


def peers(case: Case, model: Any) -> dict[str, float]:
    """What other estimators say: both know weights, gradients and Adam's state."""
    said: dict[str, float] = {}
    total_parameters = sum(parameter.numel() for parameter in model.parameters())
    try:
        from accelerate.commands.estimate import estimate_training_usage
    except ImportError:
        pass
    else:
        # As its command line does: the size in float32, and the type to train in.
        kind = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[case.precision.removesuffix("-mixed")]
        said["accelerate_mib"] = max(estimate_training_usage(4 * total_parameters, kind).values()) / MIB
    try:
        from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
    except ImportError:
        pass
    else:
        # Its helper for whole models counts meta parameters by address, which is 0 for all: the number is given here.
        said["deepspeed_mib"] = (
            estimate_zero2_model_states_mem_needs(total_parameters, 1, 1, cpu_offload=False)[1] / MIB
        )
    return said


def measure(case: Case) -> dict[str, Any]:
    import torch
    import transformers

    run = real_run(case)
    peak = 0
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        run()
        peak = max(peak, torch.cuda.max_memory_allocated())
    return {
        "case": case.name,
        "allocated_mib": peak / MIB,
        "reserved_mib": torch.cuda.max_memory_reserved() / MIB,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def real_run(
    case: Case,
    wrap: Callable[[Any], Any] = lambda model: model,
    mark: Callable[[str], None] = lambda phase: None,
    clips: bool = True,
) -> Any:
    """One training step on the GPU, as a function; `mark` is told when a phase has ended."""
    import copy

    import torch

    model = build_on_meta(case)
    placed: dict[int, Any] = {}
    for module in model.modules():
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None and id(tensor) not in placed:
                placed[id(tensor)] = place(tensor)
    bare = copy.deepcopy(model, placed).train()
    placed.clear()
    model = wrap(bare)
    optimizer = make_optimizer(case, [parameter for parameter in model.parameters() if parameter.requires_grad])
    half = {"bf16-mixed": torch.bfloat16, "fp16-mixed": torch.float16}.get(case.precision)
    scaler = torch.amp.GradScaler("cuda", enabled=half is torch.float16)
    batch = make_batch(case, bare, "cuda")

    def step() -> None:
        for _ in range(case.accumulation):
            with torch.autocast("cuda", dtype=half, enabled=half is not None):
                outputs = model(**batch) if isinstance(batch, dict) else model(*batch)
                loss = loss_of(case, outputs, batch)
            if not case.keeps_outputs:
                del outputs
            mark("forward")
            scaler.scale(loss / case.accumulation).backward()
            mark("backward")
        if case.clips and clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        mark("optimizer")
        optimizer.zero_grad(set_to_none=True)

    return step


def place(tensor: Any) -> Any:
    """A tensor of that form on the GPU with numbers a model can live with."""
    import torch

    made = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cuda")
    if tensor.is_floating_point():
        made.normal_(0, 0.02)
    return torch.nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else made


def print_operators(case: Case) -> None:
    """What the operators of the second step take beside their outputs, where it is more than 1 MiB."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    rows: dict[tuple[str, str, int], int] = {}

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            out = func(*args, **(kwargs or {}))
            beside = torch.cuda.max_memory_allocated() - max(before, torch.cuda.memory_allocated())
            shapes = [f"{str(t.dtype)[6:]}{tuple(t.shape)}" for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
            if beside > MIB:
                key = (str(func), " ".join(shapes[:4]), beside)
                rows[key] = rows.get(key, 0) + 1
            return out

    run = real_run(case)
    run()
    with Watch():
        run()
    for (name, shapes, beside), count in rows.items():
        print(f"{beside / MIB:9.1f} MiB  {count:4d} x {name}  {shapes}")


def in_processes(verb: str, names: list[str]) -> list[dict[str, Any]]:
    found = []
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if verb == "predict" else {}
    for name in names:
        command = [sys.executable, __file__, "--one", verb, name]
        environment = {**os.environ, **hidden, "TRANSFORMERS_VERBOSITY": "error"}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        else:
            found.append(json.loads(done.stdout.strip().splitlines()[-1]))
    return found


def print_table(predicted: list[dict[str, Any]], measured: dict[str, dict[str, Any]]) -> None:
    print("| case | measured MiB, allocated / reserved | predicted | error | accelerate | DeepSpeed | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    errors: dict[str, list[float]] = {"allocated": [], "reserved": [], "accelerate": [], "deepspeed": []}
    for row in predicted:
        truth = measured.get(row["case"])
        if truth is None:
            continue
        off = {
            "allocated": row["allocated_mib"] / truth["allocated_mib"] - 1,
            "reserved": row["reserved_mib"] / truth["reserved_mib"] - 1,
        }
        for peer in ("accelerate", "deepspeed"):
            if f"{peer}_mib" in row:
                off[peer] = row[f"{peer}_mib"] / truth["allocated_mib"] - 1
        for name, value in off.items():
            errors[name].append(abs(value))
        others = [f"{off[peer]:+.0%}" if peer in off else "-" for peer in ("accelerate", "deepspeed")]
        print(
            f"| {row['case']} | {truth['allocated_mib']:,.0f} / {truth['reserved_mib']:,.0f} "
            f"| {row['allocated_mib']:,.0f} / {row['reserved_mib']:,.0f} "
            f"| {off['allocated']:+.2%} / {off['reserved']:+.2%} | {others[0]} | {others[1]} | {row['seconds']:.1f} |"
        )
    for name, values in errors.items():
        if values:
            print(f"\n{name}: median {statistics.median(values):.2%}, worst {max(values):.2%}, {len(values)} cases")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CASE", help="only these")
    parser.add_argument("--measure", type=Path, metavar="FILE")
    parser.add_argument("--operators", metavar="CASE")
    parser.add_argument("--measured", type=Path, default=MEASURED, metavar="FILE")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        verb, name = arguments.one
        print(json.dumps({"predict": predict, "measure": measure}[verb](CASES[name])))
    elif arguments.operators:
        print_operators(CASES[arguments.operators])
    elif arguments.measure:
        with arguments.measure.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in in_processes("measure", arguments.names or list(CASES)))
    else:
        rows = (json.loads(line) for line in arguments.measured.read_text().splitlines())
        measured = {row["case"]: row for row in rows}
        print_table(in_processes("predict", arguments.names or list(measured)), measured)


if __name__ == "__main__":
    main()
