"""The cost of watching compiled models: step time beside an unwatched one, time to compile, and graphs compiled anew.

    python bench/overhead.py --compiled               Llama with 1.1 billion parameters, on a CUDA GPU
    python bench/overhead.py --compiled gpt2          another of the models in overhead_models.py

Each variant compiles a model of its own, which stays watched for the whole run; steps of all variants take turns. On a
CPU the models are tiny: a check that the bench runs, not a measurement. Caches of compiled code are off, so that each
variant shows the time that it takes to compile.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config

import vario
from overhead_models import CASES, Case

VARIANTS: dict[str, dict[str, Any] | None] = {
    "unwatched": None,
    "default": {},
    "gradients, weights, moments": {"quantities": ["gradient", "weight", "moment"], "every": 1, "rules": ()},
    "activations": {"quantities": ["activation"], "every": 1, "rules": ()},
    "activations and their gradients": {
        "quantities": ["activation", "activation_gradient"],
        "every": 1,
        "rules": (),
    },
}
WARM_UP = 30


def measure(name: str, rounds: int, steps: int) -> dict[str, list[float]]:
    """Print a table for one model; return the ratios to the unwatched step."""
    torch._inductor.config.force_disable_caches = True
    device = "cuda" if torch.cuda.is_available() else "cpu"
    case = CASES[name]
    variants = dict(VARIANTS)
    if torch.__version__ < "2.13":
        del variants["activations and their gradients"]  # the same as without gradients: torch allows no hooks there
    with tempfile.TemporaryDirectory() as folder:
        _Compiled(case, device, None, folder)  # what the first one alone has to wait for
        trained = {watched: _Compiled(case, device, options, folder) for watched, options in variants.items()}
        for one in trained.values():
            for _ in range(WARM_UP):
                one.step()
        recompiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        seconds: dict[str, list[float]] = {watched: [] for watched in trained}
        for _ in range(rounds):
            for watched, one in trained.items():
                seconds[watched].append(one.timed(steps))
        recompiled = torch._dynamo.utils.counters["stats"]["unique_graphs"] - recompiled
        for one in trained.values():
            one.close()
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU, tiny model"
    print(f"\n{name}, torch.compile, {where}, torch {torch.__version__}\n")
    print("| watched | first step, s | step, ms | overhead | of single rounds |\n| --- | ---: | ---: | ---: | --- |")
    kept: dict[str, list[float]] = {}
    for watched, own in seconds.items():
        ratios = [100 * (one / plain - 1) for one, plain in zip(own, seconds["unwatched"], strict=True)]
        spread = f"{min(ratios):+.1f} to {max(ratios):+.1f} %"
        step = f"{1e3 * statistics.median(own):.2f}"
        first = f"{trained[watched].first_seconds:.1f}"
        print(f"| {watched} | {first} | {step} | {statistics.median(ratios):+.1f} % | {spread} |")
        if watched != "unwatched":
            kept[f"{name} compiled: {watched}"] = [1 + ratio / 100 for ratio in ratios]
    print(f"\nGraphs compiled while steps were timed: {recompiled}")
    return kept


class _Compiled:
    """One compiled model that trains, watched or not."""

    def __init__(self, case: Case, device: str, options: dict[str, Any] | None, folder: str) -> None:
        torch.manual_seed(0)
        model = case.make(device == "cpu").to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
        compiled: Callable[..., Any] = torch.compile(model)
        self._monitor = None if options is None else vario.watch(model, optimizer, directory=folder, **options)
        ids = torch.randint(0, 128, (1, 16) if device == "cpu" else case.shape, device=device)
        self._is_on_gpu = device == "cuda"

        def step() -> None:
            with torch.autocast(device, torch.bfloat16, enabled=case.autocast):
                loss = compiled(input_ids=ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        self.step = step
        self.first_seconds = self.timed(1)

    def timed(self, steps: int) -> float:
        """Train some steps; return the seconds of one."""
        self._finish()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self._finish()
        return (time.perf_counter() - began) / steps

    def _finish(self) -> None:
        if self._is_on_gpu:
            torch.cuda.synchronize()

    def close(self) -> None:
        if self._monitor is not None:
            self._monitor.close()
