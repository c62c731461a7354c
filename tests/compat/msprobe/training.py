"""Trains tiny models under a TrainerMon: `python training.py JOBS.json`, under msprobe or vario as the jobs say.

A job: {"monitor": "msprobe" | "vario", "out", "config", "model", "steps", "accumulate", "optimizer", "start", "clip"}.
Run in a process of its own under msprobe, and called directly by the tests under vario.
"""

import importlib
import json
import math
import os
import sys
import traceback
from pathlib import Path

import torch
from torch import nn


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.act = nn.Tanh()
        self.down = nn.Linear(8, 3)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class CoreAttention(nn.Module):
    """Called with queries, keys and values, as flash attention is; returns a tuple with a hole."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def forward(self, query, key, value):
        # to b,h,s,d
        places = (1, 2, 0, 3) if self.order == "s,b,h,d" else (0, 2, 1, 3)
        q, k, v = (tensor.permute(places) for tensor in (query, key, value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mask = torch.triu(torch.ones(scores.shape[-2:], dtype=torch.bool), 1)
        mixed = scores.masked_fill(mask, -math.inf).softmax(-1) @ v
        return mixed.permute(0, 2, 1, 3).flatten(2), None


class Layer(nn.Module):
    def __init__(self, width, order):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.linear_qkv = nn.Linear(width, 3 * width)
        self.core_attention = CoreAttention(order)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.order = order

    def forward(self, x, scale=None):
        qkv = self.linear_qkv(self.norm1(x)).unflatten(-1, (3, 2, -1))
        if self.order == "s,b,h,d":
            qkv = qkv.transpose(0, 1)
        query, key, value = qkv.unbind(2)
        x = x + self.proj(self.core_attention(query, key, value)[0])
        return x + scale * self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, order="s,b,h,d", tied=False, num_layers=2):
        super().__init__()
        width = 8
        self.embedding = nn.ModuleDict({"word": nn.Embedding(17, width), "position": nn.Embedding(5, width)})
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(Layer(width, order) for _ in range(num_layers))
        self.final_norm = nn.LayerNorm(width)
        self.output_layer = nn.Linear(width, 17, bias=False)
        if tied:
            self.output_layer.weight = self.embedding["word"].weight

    def forward(self, ids):
        x = self.embedding["word"](ids) + self.embedding["position"](torch.arange(ids.shape[1]))
        for layer in self.decoder.layers:
            x = layer(x, scale=torch.ones(1))
        return self.output_layer(self.final_norm(x))


class Gate(nn.Module):
    """Takes a mask of bools and hands it on."""

    def forward(self, x, mask):
        return x.masked_fill(mask, 0.0), mask


class Masked(nn.Module):
    """Bools and whole numbers between modules."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.gate = Gate()
        self.embedding = nn.Embedding(8, 3)
        self.down = nn.Linear(8, 3)

    def forward(self, x):
        hidden = self.up(x)
        hidden, mask = self.gate(hidden, hidden < 0)
        return self.down(hidden) + self.embedding(mask.sum(-1).clamp(max=7))


class Chunk(nn.Module):
    """One stage of a virtual pipeline."""

    def __init__(self, before, after):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(before, after)])

    def forward(self, x):
        return torch.tanh(self.layers[0](x))


def make_model(name):
    """A model (or its chunks) and what makes its batches, out of the reach of what draws from the global generator."""
    generator = torch.Generator().manual_seed(1)
    if name == "perceptron":
        return Perceptron(), lambda: torch.randn(7, 6, generator=generator)
    if name == "masked":
        return Masked(), lambda: torch.randn(7, 6, generator=generator)
    if name == "chunks":
        return [Chunk(6, 8), Chunk(8, 3)], lambda: torch.randn(7, 6, generator=generator)
    kind, _, order = name.partition("/")
    model = Gpt(order or "s,b,h,d", tied=kind == "tied", num_layers=11 if kind == "deep" else 2)
    return model, lambda: torch.randint(0, 17, (3, 5), generator=generator)


def forward(model, batch):
    for chunk in model if isinstance(model, list) else [model]:
        batch = chunk(batch)
    return batch


def make_optimizer(name, parameters):
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=0.01)
    if name == "groups":
        # As most trainers do it: what is decayed first, and biases and norms after it.
        matrices, others = ([one for one in parameters if (one.dim() > 1) is is_matrix] for is_matrix in (True, False))
        return torch.optim.AdamW([{"params": matrices}, {"params": others, "weight_decay": 0.0}], lr=0.01)
    return torch.optim.AdamW(parameters, lr=0.01)


def train(job, each_step=None):
    """Train one model under one monitor; returns the losses. `each_step(step, monitor)` is called after each update."""
    before = os.environ.get("MONITOR_OUTPUT_DIR")
    os.environ["MONITOR_OUTPUT_DIR"] = job["out"]
    try:
        return train_there(job, each_step)
    finally:
        os.environ.pop("MONITOR_OUTPUT_DIR")
        if before is not None:
            os.environ["MONITOR_OUTPUT_DIR"] = before


def train_there(job, each_step):
    Path(job["out"]).mkdir(parents=True, exist_ok=True)
    config = Path(job["out"] + ".json")
    config.write_text(json.dumps(job["config"]))
    module = {"msprobe": "msprobe.pytorch", "vario": "vario.compat.msprobe"}[job["monitor"]]
    torch.manual_seed(0)
    model, batch = make_model(job.get("model", "perceptron"))
    chunks = model if isinstance(model, list) else [model]
    parameters = [parameter for chunk in chunks for parameter in chunk.parameters()]
    optimizer = make_optimizer(job.get("optimizer", "adamw"), parameters)
    accumulate = job.get("accumulate", 1)
    monitor = importlib.import_module(module).TrainerMon(str(config), params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=accumulate, optimizer=optimizer, start_iteration=job.get("start", 0))
    losses, asked = [], []
    try:
        for step in range(job.get("steps", 3)):
            for _ in range(accumulate):
                loss = forward(model, batch()).square().mean() / accumulate
                loss.backward()
            losses.append(loss.item())
            if job.get("asks"):
                asked.append(ask(monitor))
            if "clip" in job:
                nn.utils.clip_grad_norm_(parameters, job["clip"])
            optimizer.step()
            if job.get("waits") and job["monitor"] == "vario":
                monitor._monitor.wait()  # steps that come faster than pictures are drawn share one
            if each_step is not None:
                each_step(step, monitor)
            optimizer.zero_grad()
    finally:
        if job["monitor"] == "vario":
            monitor.close()
        else:
            writer = getattr(monitor, "summary_writer", None)
            # At the end of the process it would lose its last events now and then.
            getattr(writer, "close", lambda: None)()
    if asked:
        Path(job["out"] + ".asked.json").write_text(json.dumps(asked))
    return losses


def ask(monitor):
    """What the API answers between backward and the update."""
    answers = [*monitor.generate_wgrad_metrics(), *monitor.generate_xy_metrics()]
    return [{tag: {op: float(value) for op, value in found.items()} for tag, found in one.items()} for one in answers]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for job in json.loads(Path(sys.argv[1]).read_text()):
        try:
            train(job)
        except Exception:  # noqa: BLE001 - whatever it is, the test shows it
            Path(job["out"] + ".error").write_text(traceback.format_exc())
