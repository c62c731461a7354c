"""The cost of watching: step time and memory with each set of quantities, compared with the same loop unwatched.

    python bench/overhead.py             one CUDA GPU: Llama-like 1.1B, bf16, batch 8 x 2048, fused AdamW
    python bench/overhead.py --cpu       GPT of 33.7M parameters, beside other tools where they are installed
    python bench/overhead.py --models    Llama, GPT-2 and a mixture of experts of transformers, on a CUDA GPU
    python bench/overhead.py --small     GPT of width 64 on a CPU: what the training thread pays where steps are short
    python bench/overhead.py --small --check   the same; fails if a ratio is worse than the one stored by --keep
    python bench/overhead.py --distributed   the same GPT on two CPU ranks, under DDP and FSDP2, beside msprobe
    python bench/overhead.py --mindspore     10M parameters on a CPU with MindSpore, beside a transfer per tensor

Variants alternate within one run, because machines drift. Every variant watches every step and all statistics, and
writes a real run folder.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import kept_ratios
import vario
from models import GPT, Llama, language_loss
from peers import ACTIVATIONS, EVERYTHING, GRADIENTS, OPS, PEERS, trainer_mon

VARIANTS: dict[str, list[str]] = {
    "gradients": ["gradient"],
    "gradients, weights, moments": ["gradient", "weight", "moment"],
    "activations and their gradients": ["activation", "activation_gradient"],
    "everything": ["gradient", "weight", "moment", "activation", "activation_gradient"],
}

# What msprobe's TrainerMon records, by vario's own names and through vario's TrainerMon: the same tensors twice.
THEIR_GRADIENTS = ["gradient", "gradient_applied"]
THEIR_EVERYTHING = [
    *THEIR_GRADIENTS,
    *("weight_before", "weight", "moment_before"),
    *("activation", "activation_gradient"),
]
THROUGH_TRAINER_MON: dict[str, tuple[list[str], dict[str, bool]]] = {
    "msprobe's gradients": (THEIR_GRADIENTS, GRADIENTS),
    "msprobe's activations": (VARIANTS["activations and their gradients"], ACTIVATIONS),
    "msprobe's everything": (THEIR_EVERYTHING, EVERYTHING),
}

Attach = Callable[[torch.nn.Module, torch.optim.Optimizer, str], Callable[[], None]]


def ours(quantities: list[str], **options: object) -> Attach:
    return lambda model, optimizer, folder: watched(model, optimizer, quantities, folder, **options).close


def beside_trainer_mon() -> dict[str, Attach]:
    """Return the same work by vario itself and through its TrainerMon."""
    cases: dict[str, Attach] = {}
    for name, (quantities, fields) in THROUGH_TRAINER_MON.items():
        cases[f"{name}, vario itself"] = ours(quantities, statistics=OPS)
        cases[f"{name}, vario through TrainerMon"] = trainer_mon("vario.compat.msprobe", **fields)
    return cases


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> torch.Tensor:
    loss = language_loss(model, ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def watched(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, quantities: list[str], folder: str, **options: object
) -> vario.Monitor:
    return vario.watch(model, optimizer, quantities=quantities, every=1, directory=folder, strict=True, **options)


def measure_gpu(rounds: int, steps: int, layers: int) -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Llama(layers=layers).to(torch.bfloat16)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    ids = torch.randint(0, 32000, (8, 2048), device="cuda")
    for _ in range(3):
        train_step(model, optimizer, ids)
    variants: dict[str, Attach] = {name: ours(quantities) for name, quantities in VARIANTS.items()}
    variants.update(beside_trainer_mon())
    seconds: dict[str, list[float]] = {name: [] for name in ("plain", *variants)}
    peak: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for name in seconds:
                detach = variants[name](model, optimizer, folder) if name in variants else None
                for _ in range(3):
                    train_step(model, optimizer, ids)
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                for _ in range(steps):
                    train_step(model, optimizer, ids)
                torch.cuda.synchronize()
                seconds[name].append((time.perf_counter() - began) / steps)
                peak[name] = torch.cuda.max_memory_allocated()
                if detach is not None:
                    detach()
                del detach
                gc.collect()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {num_parameters / 1e9:.2f}B parameters, bf16,")
    print(f"batch 8 x 2048, fused AdamW, {steps} steps x {rounds} rounds, all statistics each step\n")
    print("| watched | step ms | overhead | extra peak memory |\n| --- | --- | --- | --- |")
    plain = seconds["plain"]
    print(f"| nothing | {statistics.median(plain) * 1e3:.1f} | | ({peak['plain'] / 2**30:.1f} GiB) |")
    for name in variants:
        ratio = statistics.median(ours / base for ours, base in zip(seconds[name], plain, strict=True))
        extra = peak[name] / peak["plain"] - 1
        step_ms = statistics.median(seconds[name]) * 1e3
        print(f"| {name} | {step_ms:.1f} | {100 * (ratio - 1):.2f} % | {100 * extra:.3f} % |")
    print(f"\nThe plain rounds differ by {100 * (max(plain) / min(plain) - 1):.2f} %. Step ms of each round:")
    for name, rounds_seconds in seconds.items():
        print(f"  {name}: {', '.join(f'{one * 1e3:.1f}' for one in rounds_seconds)}")


def cpu_ratio(attach: Attach, pairs: int, tokens: int) -> tuple[float, float]:
    """Median CPU-time and wall-time ratio of a watched model to its unwatched twin, steps alternating."""
    twins = []
    for _ in range(2):
        torch.manual_seed(0)
        model = GPT()
        twins.append((model, torch.optim.AdamW(model.parameters(), lr=1e-4)))
    ids = torch.randint(0, 16384, (tokens // 128, 128), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        detach = attach(*twins[0], folder)
        cpu: list[float] = []
        wall: list[float] = []
        for pair in range(pairs + 2):
            spent = []
            for model, optimizer in twins:
                began, began_cpu = time.perf_counter(), time.process_time()
                train_step(model, optimizer, ids)
                spent.append((time.process_time() - began_cpu, time.perf_counter() - began))
            if pair >= 2:
                cpu.append(spent[0][0] / spent[1][0])
                wall.append(spent[0][1] / spent[1][1])
        detach()
    return statistics.median(cpu), statistics.median(wall)


def measure_cpu(pairs: int, tokens: int, only: str) -> None:
    # One thread: the ratio of CPU times is then that of the work, not of how two threads wait for each other.
    torch.set_num_threads(1)
    cases: dict[str, Attach] = {
        "vario: gradients": ours(["gradient"]),
        "vario: activations and their gradients": ours(["activation", "activation_gradient"]),
        "vario: everything": ours(VARIANTS["everything"]),
        "vario: everything, steps outside the schedule": ours(VARIANTS["everything"], start=10**6),
        **beside_trainer_mon(),
        **PEERS,
    }
    print(f"\n{platform.processor() or platform.machine()}, torch {torch.__version__}, one thread,")
    print(f"GPT of 33.7M parameters, {tokens} tokens per step, median of {pairs} pairs of alternating steps\n")
    print("| watched by | CPU time | wall time |\n| --- | --- | --- |", flush=True)
    for name, attach in cases.items():
        if only not in name:
            continue
        try:
            cpu, wall = cpu_ratio(attach, pairs, tokens)
        except ImportError as error:
            print(f"| {name} | not installed: {error.name} | |", flush=True)
            continue
        print(f"| {name} | {cpu:.2f} | {wall:.2f} |", flush=True)
        gc.collect()


def measure_small(rounds: int, steps: int) -> dict[str, list[float]]:
    """CPU time of the training thread over that of the unwatched step, of rounds that take turns."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = GPT(width=64, layers=12, heads=4, vocabulary=256, length=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    batches = [torch.randint(0, 256, (1, 16)) for _ in range(400)]
    every_step = {name: {"quantities": chosen, "every": 1, "rules": ()} for name, chosen in VARIANTS.items()}
    cases: dict[str, dict[str, object] | None] = {"unwatched": None, "default": {}, **every_step}
    spent: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, options in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                monitor = None if options is None else vario.watch(model, optimizer, directory=folder, **options)
                warm_up = 12 if options else 80  # the default takes some dozen steps to settle
                for at in range(warm_up):
                    train_step(model, optimizer, batches[at])
                began = time.thread_time()
                for at in range(steps):
                    train_step(model, optimizer, batches[(at + warm_up) % len(batches)])
                spent[name].append((time.thread_time() - began) / steps)
                if monitor is not None:
                    monitor.close()
    unwatched = spent.pop("unwatched")
    print(f"unwatched: {1e3 * min(unwatched):.2f} ms of CPU time per step")
    for name, seconds in spent.items():
        print(f"{name}: {min(seconds) / min(unwatched):.2f}")
    return {name: [own / one for own, one in zip(seconds, unwatched, strict=True)] for name, seconds in spent.items()}


def measure_distributed(pairs: int, tokens: int, only: str) -> None:
    from overhead_distributed import CASES

    print(f"\n{platform.processor() or platform.machine()}, torch {torch.__version__}, 2 ranks of one thread, gloo,")
    print(f"GPT of 33.7M parameters, {tokens} tokens per rank and step, median of {pairs} pairs of alternating steps;")
    print("extra memory: peak of a process with one model, watched, minus that of one unwatched; rank 0 / rank 1\n")
    print(
        "| engine | watched by | CPU time | wall time | extra memory, MiB |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    for engine in ("ddp", "fsdp2"):
        plain = [found["peak"] for found in on_two_ranks(engine, "peak", "nothing", pairs, tokens)]
        for case in (name for name in CASES if only in name):
            try:
                found = on_two_ranks(engine, "ratio", case, pairs, tokens)
                peaks = [one["peak"] for one in on_two_ranks(engine, "peak", case, pairs, tokens)]
            except RuntimeError as error:
                print(f"| {engine} | {case} | {error} | | |", flush=True)
                continue
            cpu, wall = (" / ".join(f"{one[key]:.2f}" for one in found) for key in ("cpu", "wall"))
            extra = " / ".join(f"{(peak - base) / 2**20:.0f}" for peak, base in zip(peaks, plain, strict=True))
            print(f"| {engine} | {case} | {cpu} | {wall} | {extra} |", flush=True)
        print(f"| {engine} | nothing | | ({found[0]['plain_seconds'] * 1e3:.0f} ms) | ({plain[0] / 2**20:.0f} MiB) |")


def on_two_ranks(engine: str, what: str, case: str, pairs: int, tokens: int) -> list[dict[str, float]]:
    """Return each rank's results, from separate processes, so that nothing a tool leaves behind matters."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = Path(__file__).with_name("overhead_distributed.py")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OVERHEAD_RESULT": f"{folder}/found"}
        arguments = [engine, what, case, str(pairs), str(tokens)]
        done = subprocess.run([*command, str(script), *arguments], env=environment, capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if "Error" in line]
            raise RuntimeError(errors[0] if errors else done.stderr[-300:])
        return [json.loads(Path(f"{folder}/found.{rank}").read_text()) for rank in range(2)]


def measure_mindspore(rounds: int) -> None:
    root = Path(__file__).parents[1]
    python = root / ".mindspore" / "bin" / "python"
    if not python.exists():
        sys.exit("there is no .mindspore: run `make mindspore`")
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "GLOG_v": "3"}
    command = [str(python), str(root / "bench" / "overhead_mindspore.py"), "--rounds", str(rounds)]
    subprocess.run(command, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="measure on the CPU, compared with other tools")
    parser.add_argument("--distributed", action="store_true", help="measure on two CPU ranks, compared with msprobe")
    parser.add_argument("--models", nargs="*", metavar="NAME", help="measure models of transformers; default: all")
    parser.add_argument("--compiled", nargs="?", const="llama1b", metavar="NAME", help="measure a compiled model")
    parser.add_argument("--small", action="store_true", help="measure a small model on the CPU")
    parser.add_argument(
        "--mindspore", action="store_true", help="measure MindSpore on the CPU (`make mindspore` first)"
    )
    parser.add_argument("--keep", action="store_true", help="with --small or --models: store the ratios")
    parser.add_argument("--check", action="store_true", help="the same: fail if one is worse than the stored ratio")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {}
    if arguments.models is not None:
        from overhead_models import measure

        found = measure(arguments.models, arguments.rounds)
    elif arguments.compiled is not None:
        import overhead_compiled

        found = overhead_compiled.measure(arguments.compiled, arguments.rounds, arguments.steps)
    elif arguments.mindspore:
        measure_mindspore(arguments.rounds)
    elif arguments.distributed:
        measure_distributed(arguments.pairs, arguments.tokens, arguments.only)
    elif arguments.small:
        found = measure_small(max(5, arguments.rounds), 4 * arguments.steps)
    elif arguments.cpu:
        measure_cpu(arguments.pairs, arguments.tokens, arguments.only)
    else:
        measure_gpu(arguments.rounds, arguments.steps, arguments.layers)
    where = (
        torch.cuda.get_device_name()
        if (arguments.models is not None or arguments.compiled) and torch.cuda.is_available()
        else "CPU"
    )
    if arguments.check:
        kept_ratios.check(where, found)
    if arguments.keep:
        kept_ratios.keep(where, found)


if __name__ == "__main__":
    main()
