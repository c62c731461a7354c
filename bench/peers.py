"""Other tools, attached as their documentation says; each function returns how to detach it."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Detach = Callable[[], None]


OPS = ["min", "max", "norm", "mean", "zeros", "nans"]


def trainer_mon(home: str, **fields: Any) -> Callable[[torch.nn.Module, torch.optim.Optimizer, str], Detach]:
    """A TrainerMon with six statistics: mindstudio-probe's from `msprobe.pytorch`, ours from `vario.compat.msprobe`."""

    def attach(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> Detach:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        TrainerMon = importlib.import_module(home).TrainerMon
        config = {"targets": {}, "format": "csv", "ops": OPS, **fields}
        path = Path(folder) / "monitor.json"
        path.write_text(json.dumps(config))
        path.chmod(0o640)
        monitor = TrainerMon(str(path), params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        return getattr(monitor, "close", lambda: None)

    return attach


def histograms(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> Detach:
    """Do what a histogram watcher does in every gradient hook: drop non-finite values, bin the rest, copy the bins."""
    out = (Path(folder) / "histograms.jsonl").open("w")

    def record(name: str, gradient: torch.Tensor) -> None:
        flat = gradient.detach().reshape(-1)
        flat = flat[torch.isfinite(flat)].float()
        low, high = flat.min().item(), flat.max().item()
        bins = torch.histc(flat, bins=64, min=low, max=high)
        out.write(json.dumps({"name": name, "low": low, "high": high, "bins": bins.tolist()}) + "\n")

    handles = [
        parameter.register_hook(lambda gradient, name=name: record(name, gradient))
        for name, parameter in model.named_parameters()
    ]

    def detach() -> None:
        for handle in handles:
            handle.remove()
        out.close()

    return detach


GRADIENTS = {"wg_distribution": True}
ACTIVATIONS = {"xy_distribution": True, "all_xy": True}
EVERYTHING = {**GRADIENTS, **ACTIVATIONS, "param_distribution": True, "mv_distribution": True}

PEERS: dict[str, Callable[[torch.nn.Module, torch.optim.Optimizer, str], Detach]] = {
    "histograms of gradients (as wandb.watch)": histograms,
    "msprobe: gradients": trainer_mon("msprobe.pytorch", **GRADIENTS),
    "msprobe: activations and their gradients": trainer_mon("msprobe.pytorch", **ACTIVATIONS),
    "msprobe: everything": trainer_mon("msprobe.pytorch", **EVERYTHING),
    "msprobe: everything, steps outside the schedule": trainer_mon("msprobe.pytorch", **EVERYTHING, start_step=10**6),
}
