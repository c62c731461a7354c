"""The cost of watching at large scale: many parameters, many plain numbers, many steps.

    python bench/scale.py tensors 10000 100000   # attaching, and a step of a model of so many small parameters
    python bench/scale.py numbers 20000          # a step that logs one plain number, of so many
    python bench/scale.py memory 100000          # memory of the process over so many steps of a tiny model

Measures the CPU time of all threads: wall time says little on a busy machine.
"""

from __future__ import annotations

import argparse
import gc
import logging
import tempfile
import time

import numpy as np
import torch

import vario

STEPS = 5


class Many(torch.nn.Module):
    """Parameters of four elements each."""

    def __init__(self, num_parameters: int) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.full((4,), index % 7 / 7) for index in range(num_parameters))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """A mean over all of them."""
        return (torch.stack(list(self.parts)) * inputs).square().mean()


def resident_mb() -> float:
    """Memory of this process."""
    with open("/proc/self/statm", encoding="utf8") as file:
        return int(file.read().split()[1]) * 4096 / 1e6


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    """Forward, backward, update."""
    model(torch.full((4,), 1.0 + step)).backward()
    optimizer.step()
    optimizer.zero_grad()


def tensors(num_parameters: int) -> None:
    """Compare a model with very many parameters with its unwatched twin."""
    models = [Many(num_parameters) for _ in range(2)]
    pairs = [(model, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)) for model in models]
    for pair in pairs:
        one_step(*pair, 0)
    gc.collect()
    before, cpu = resident_mb(), time.process_time()
    monitor = vario.watch(*pairs[1], directory=tempfile.mkdtemp())
    attach = f"attach {time.process_time() - cpu:.2f} s, {resident_mb() - before:.0f} MB"
    spent: list[list[float]] = [[], []]
    for step in range(1, STEPS + 1):
        for pair, seconds in zip(pairs, spent, strict=True):
            cpu = time.process_time()
            one_step(*pair, step)
            monitor.wait()
            seconds.append(time.process_time() - cpu)
    monitor.close()
    plain, watched = (float(np.median(seconds)) for seconds in spent)
    first = f"first step {spent[1][0]:.2f} s"
    print(f"{num_parameters} parameters: {attach}; {first}; step {plain:.2f} s, watched {watched:.2f} s", flush=True)


def numbers(num_steps: int) -> None:
    """Time steps that log a number and mark their end."""
    with vario.watch(torch.nn.Linear(2, 2), directory=tempfile.mkdtemp()) as monitor:
        for step in range(-200, num_steps):
            if not step:
                cpu = time.process_time()
            monitor.log(loss=1.0 / (step + 300))
            monitor.step()
        monitor.wait()
        print(f"{(time.process_time() - cpu) / num_steps * 1e6:.0f} us per step", flush=True)


def at_rest() -> float:
    """Resident memory while the store rewrites no part: the least of some looks."""
    looks = []
    for _ in range(5):
        time.sleep(0.2)
        looks.append(resident_mb())
    return min(looks)


def memory(num_steps: int) -> None:
    """A tiny model, first unwatched and then watched: memory at 21 steps, and how much it grows from the third on."""
    for is_watched in (False, True):
        model = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        monitor = vario.watch(model, optimizer, directory=tempfile.mkdtemp(), enabled=is_watched)
        seen = []
        for step in range(num_steps + 1):
            model(torch.randn(32, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % (num_steps // 20) == 0:
                monitor.wait()
                seen.append(at_rest())
        monitor.close()
        print("watched" if is_watched else "unwatched", " ".join(f"{one:.1f}" for one in seen), "MB", flush=True)
        steps = np.arange(2, len(seen))
        # The line through all of them: single ones differ.
        growth = float(np.polyfit(steps, seen[2:], 1)[0]) * (len(steps) - 1) / seen[2]
        last = seen[-1] / seen[2] - 1
        verdict = "flat to 1 %" if abs(growth) <= 0.01 else "it grows" if growth > 0 else "it shrinks"
        print(
            f"  from 10 to 100 % of the steps: {growth:+.1%} by the trend, {last:+.1%} at the end: {verdict}",
            flush=True,
        )


def main() -> None:
    """Run one of the cases."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=["tensors", "numbers", "memory"])
    parser.add_argument("sizes", type=int, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    # The first Monitor of a process imports what all of them need.
    vario.watch(torch.nn.Linear(2, 2), directory=tempfile.mkdtemp()).close()
    for size in arguments.sizes:
        {"tensors": tensors, "numbers": numbers, "memory": memory}[arguments.case](size)


if __name__ == "__main__":
    main()
