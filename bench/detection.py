"""The cost of rules: their time per step with many series, and the effect on a training step.

    python bench/detection.py                  the rules alone: milliseconds for 1,000, 5,000 and 20,000 series
    python bench/detection.py --train          steps with rules and without, taking turns (on a GPU if there is one)

    python bench/detection.py --default        steps watched as by default (all rules, usual intervals) and unwatched

All rules are on and every series has a new value at every step, which is the worst case; with --default the intervals
are the default ones.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time

import numpy as np
import torch

import vario
from models import GPT, Llama
from overhead import train_step
from vario.core.records import Frame
from vario.rules import choose
from vario.rules.api.detector import Detector
from vario.rules.api.incidents import Incidents
from vario.rules.api.series_state import Memory
from vario.rules.api.step_view import Facts, Step

WATCHED = ["gradient", "weight", "moment", "activation", "activation_gradient", "update", "unexpected_change"]


def alone(num_parameters: int, steps: int = 200) -> tuple[int, float]:
    """Number of series and median seconds of one step's rules."""
    noise = np.random.default_rng(0)
    parameters = [f"model.layers.{number // 7}.part{number % 7}.weight" for number in range(num_parameters)]
    sides = [f"{name.removesuffix('.weight')}:{side}" for name in parameters for side in ("input", "output")]
    parts = [
        f"{name}:{part}"
        for name in parameters
        for part in ("change", "ratio", "pace", "grad_vs_second_moment", "eps_share")
    ]
    named = {"gradient": parameters, "weight": parameters, "activation": sides, "update": parts}
    facts = Facts(shapes=dict.fromkeys(parameters, (64, 64)), trainable=frozenset(parameters))
    chosen = choose(None)
    detector, memory = Detector(chosen), Memory()
    incidents = Incidents({found.rule.name: found.rule for found in chosen})
    seconds = []
    for number in range(steps):
        frames = [_frame(quantity, number, names, noise) for quantity, names in named.items()]
        scalars = {"loss": float(noise.normal(2, 0.05)), "lr": 1e-3, "step_seconds": 0.3}
        began = time.thread_time()
        incidents.add(number, detector.see(Step(number, 0.0, scalars, frames, facts, memory), None))
        seconds.append(time.thread_time() - began)
    return sum(map(len, named.values())), statistics.median(seconds[50:])


def _frame(quantity: str, step: int, names: list[str], noise: np.random.Generator) -> Frame:
    rows = np.zeros((len(names), 8))
    rows[:, 0], rows[:, 2] = 4096, 4096 * np.exp(noise.normal(0, 0.2, len(names)))
    rows[:, 3], rows[:, 4], rows[:, 7] = -4, 4, 10
    return Frame(quantity, step, 0, tuple(names), np.arange(len(names), dtype=np.int32), rows)


def made_model(layers: int) -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.Tensor]:
    """The model of the overhead benchmark, its optimizer and a batch."""
    torch.manual_seed(0)
    if torch.cuda.is_available():
        with torch.device("cuda"):
            model: torch.nn.Module = Llama(layers=layers).to(torch.bfloat16)
        ids = torch.randint(0, 32000, (8, 2048), device="cuda")
        return model, torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True), ids
    model = GPT()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randint(0, 16384, (4, 128))


def in_training(rounds: int, steps: int, layers: int, by_default: bool) -> None:
    """Steps of one model with all rules and with none, or watched as by default and unwatched, round after round."""
    model, optimizer, ids = made_model(layers)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    num_series = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds + 1):
            for is_on in (True, False):
                monitor = None
                if by_default and is_on:
                    monitor = vario.watch(model, optimizer, directory=folder)
                elif not by_default:
                    monitor = vario.watch(model, optimizer, quantities=WATCHED, every=1, directory=folder, rules=is_on)
                for _ in range(3):
                    train_step(model, optimizer, ids)
                _wait()
                began = time.perf_counter()
                for _ in range(steps):
                    train_step(model, optimizer, ids)
                _wait()
                if number:
                    seconds[is_on].append((time.perf_counter() - began) / steps)
                if monitor is not None:
                    monitor.close()
                    assert monitor.path is not None
                    run = vario.open_run(monitor.path)
                    num_series = sum(len(run.targets(name)) for name in run.quantities() if name != "scalar")
                del monitor
                gc.collect()
    ratios = [on / off - 1 for on, off in zip(seconds[True], seconds[False], strict=True)]
    off, on = (statistics.median(seconds[is_on]) * 1e3 for is_on in (False, True))
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    what = ("unwatched", "watched as by default") if by_default else ("without rules", "with all of them")
    often = "in all" if by_default else "at every step"
    print(f"{where}: {num_series} series {often}; step {off:.1f} ms {what[0]}, {on:.1f} ms {what[1]};")
    print(
        f"ratio of neighbours {100 * statistics.median(ratios):+.2f} % (from {100 * min(ratios):+.2f} to "
        f"{100 * max(ratios):+.2f} % over {rounds} rounds of {steps} steps)"
    )


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layers", type=int, default=22)
    options = parser.parse_args()
    if options.train or options.default:
        in_training(options.rounds, options.steps, options.layers, options.default)
        return
    for num_parameters in (112, 556, 2223):
        num_series, seconds = alone(num_parameters)
        print(
            f"{num_series:6} series: {seconds * 1e3:6.2f} ms per step, {seconds / num_series * 1e6:.2f} us per series"
        )


if __name__ == "__main__":
    main()
