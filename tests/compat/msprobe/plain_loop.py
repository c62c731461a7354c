"""A TrainerMon on a model of the test's own, and steps for it."""

import json

import torch

import training
from vario.compat.msprobe import TrainerMon


def write_config(out, config):
    path = out.parent / "monitor.json"
    path.write_text(json.dumps(config))
    return path


def watch(out, config, model, optimizer, **options):
    monitor = TrainerMon(write_config(out, config), params_have_main_grad=False)
    monitor.set_monitor(model, options.pop("grad_acc_steps", 1), optimizer, **options)
    return monitor


def perceptron():
    torch.manual_seed(0)
    return training.Perceptron()


def take_steps(model, optimizer, num_steps=3, after=None):
    for step in range(num_steps):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        if after is not None:
            after(step)
        optimizer.zero_grad()
