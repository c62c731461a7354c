"""Other tools, attached the way their own documentation says; each returns how to detach it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Detach = Callable[[], None]


def msprobe(**fields: Any) -> Callable[[torch.nn.Module, torch.optim.Optimizer, str], Detach]:
    """mindstudio-probe's TrainerMon with six statistics."""

    def attach(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> Detach:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        from msprobe.pytorch import TrainerMon

        config = {"targets": {}, "format": "csv", "ops": ["min", "max", "norm", "mean", "zeros", "nans"], **fields}
        path = Path(folder) / "monitor.json"
        path.write_text(json.dumps(config))
        path.chmod(0o640)
        monitor = TrainerMon(str(path), params_have_main_grad=False)
        monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
        return lambda: None

    return attach


def histograms(model: torch.nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> Detach:
    """What a histogram watcher does in every gradient hook: drop what is not finite, bin the rest, fetch the bins."""
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


_everything = {
    "wg_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "param_distribution": True,
    "mv_distribution": True,
}

PEERS: dict[str, Callable[[torch.nn.Module, torch.optim.Optimizer, str], Detach]] = {
    "histograms of gradients (as wandb.watch)": histograms,
    "msprobe: gradients": msprobe(wg_distribution=True),
    "msprobe: activations and their gradients": msprobe(xy_distribution=True, all_xy=True),
    "msprobe: everything": msprobe(**_everything),
    "msprobe: everything, steps outside the schedule": msprobe(**_everything, start_step=10**6),
}
