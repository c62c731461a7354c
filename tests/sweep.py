"""A sweep as people do it: thirty small trainings that differ in learning rate, width and seed."""

import argparse
import itertools

import torch
from torch import nn

import vario

RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
WIDTHS = (4, 8, 16)
SEEDS = (0, 1)
STEPS = 16


def train_sweep(folder):
    """Train all thirty, one after the other."""
    for lr, width, seed in itertools.product(RATES, WIDTHS, SEEDS):
        train_one(folder, argparse.Namespace(lr=lr, width=width, seed=seed, act="tanh" if width < 16 else "relu"))
    return folder


def train_one(folder, args, steps=STEPS):
    """The namespace is found by vario; `val_loss` is what the sweep is about."""
    torch.manual_seed(args.seed)
    act = nn.Tanh() if args.act == "tanh" else nn.ReLU()
    model = nn.Sequential(nn.Linear(4, args.width), act, nn.Linear(args.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    generator = torch.Generator().manual_seed(7)
    teacher = torch.randn(4, 1, generator=generator)
    held_out = torch.randn(32, 4, generator=generator)
    name = f"lr{args.lr}-w{args.width}-s{args.seed}"
    options = {"quantities": ["gradient"], "every": 1, "strict": True, "rules": True}
    with vario.watch(model, optimizer, directory=str(folder), name=name, **options) as monitor:
        monitor.log(total_steps=steps)
        for step in range(steps):
            optimizer.zero_grad()
            inputs = torch.randn(32, 4, generator=generator)
            loss = (model(inputs) - (inputs @ teacher).sin()).square().mean()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
            if step % 4 == 3:
                with torch.no_grad():
                    error = (model(held_out) - (held_out @ teacher).sin()).square().mean()
                seen = {"epoch": float(step // 4), "tokens": 512.0 * (step + 1)}
                monitor.log(val_loss=error.item(), accuracy=1 / (1 + error.item()), **seen)
    return folder / name
