"""A small model and its training under the monitors, and what they wrote, read back."""

import contextlib
import logging

import numpy as np
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

import vario

ALL = ["log", "tensorboard"]
MONITOR = {
    "monitor_on": True,
    "local_loss_format": ALL,
    "device_local_loss_format": ALL,
    "local_norm_format": ALL,
    "device_local_norm_format": ALL,
    "optimizer_state_format": ALL,
    "weight_state_format": ALL,
    "throughput_baseline": 100,
}
BOARD = {"log_loss_scale_to_tensorboard": True, "log_timers_to_tensorboard": True}


class Tower(nn.Module):
    """Twelve layers, so that layer 1 and layer 10 are both there."""

    def __init__(self, depth=12):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(depth))
        self.head = nn.Linear(6, 3)

    def forward(self, rows):
        for layer in self.layers:
            rows = rows + torch.tanh(layer(rows))
        return self.head(rows)


def content(folder, monitor=None, board=None, loss_monitor=None, **others):
    """The content of a YAML file whose files all go to a folder."""
    return {
        "monitor_config": {**MONITOR, "dump_path": str(folder / "dump"), **(monitor or {})},
        "tensorboard": {"tensorboard_dir": str(folder / "board"), **BOARD, **(board or {})},
        "callbacks": [{"type": "MFLossMonitor", **(loss_monitor or {})}],
        **others,
    }


def train(config, model=None, steps=4, micro_steps=1, rows=5, after=None, scaler=None, seed=0, **options):
    """Train with AdamW; returns the model, and per step its loss and gradients in float64 before clipping."""
    torch.manual_seed(seed)
    model = Tower() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    seen = []
    with vario.watch(model, optimizer, config=config, **options) as monitor:
        for step in range(steps):
            losses = []
            for _ in range(micro_steps):
                loss = model(torch.randn(rows, 6)).square().mean()
                losses.append(loss.item())
                loss = loss / micro_steps
                (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is not None:
                scaler.unscale_(optimizer)
            named = [(name, each) for name, each in model.named_parameters() if each.grad is not None]
            gradients = {name: each.grad.double().numpy().copy() for name, each in named}
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            weights = {name: each.detach().double().numpy().copy() for name, each in model.named_parameters()}
            moments = {
                (name, key): optimizer.state[each][key].double().numpy().copy()
                for name, each in named
                for key in ("exp_avg", "exp_avg_sq")
            }
            optimizer.zero_grad()
            seen.append({"losses": losses, "gradients": gradients, "weights": weights, "moments": moments})
            if after is not None:
                after(monitor, step)
    return monitor, seen


def norm(arrays):
    """The norm of several arrays together."""
    return float(np.sqrt(sum(float((array**2).sum()) for array in arrays)))


class Board:
    """One rank's event files, read with TensorBoard's own reader."""

    def __init__(self, folder, rank=0, place=None):
        self.folder = folder / "board" / (place or f"rank_{rank}")
        self._read = EventAccumulator(str(self.folder), size_guidance={"scalars": 0, "tensors": 0})
        self._read.Reload()

    @property
    def tags(self):
        return set(self._read.Tags()["scalars"])

    def curve(self, tag):
        return {event.step: event.value for event in self._read.Scalars(tag)}

    def steps(self, tag):
        return [event.step for event in self._read.Scalars(tag)]

    @property
    def texts(self):
        tags = self._read.Tags()["tensors"]
        return {
            tag.removesuffix("/text_summary"): self._read.Tensors(tag)[0].tensor_proto.string_val[0].decode()
            for tag in tags
        }


@contextlib.contextmanager
def said():
    """The lines of the monitors, as a handler of the user's gets them."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())

    handler = Keep()
    log = logging.getLogger("vario.mindformers")
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)
