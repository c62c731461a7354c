"""A regression with a network of three layers and a closure: Adam, decaying rate; steps of about a millisecond."""

from __future__ import annotations

import torch
from common import Job
from torch import Tensor, nn

INPUTS = 12


def truth(x: Tensor) -> Tensor:
    """The function to learn."""
    return (x[:, 0] * x[:, 1] + (2 * x[:, 2]).sin() + 0.5 * x[:, 3:].sum(1))[:, None]


def main() -> None:
    job = Job(
        steps=400,
        faults=["eps-large", "moments-zeroed", "input-constant", "outliers", "rate-decays-fast"],
        at_start=["layer-missing", "rate-100-times", "init-wide"],
    )
    model = nn.Sequential(
        nn.Linear(INPUTS, 64),
        nn.Tanh(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 1),
    )
    if job.on("init-wide", 0):
        with torch.no_grad():
            for module in model:
                if isinstance(module, nn.Linear):
                    module.weight *= 40
    trained = [p for name, p in model.named_parameters() if job.fault != "layer-missing" or not name.startswith("2.")]
    rate = 0.3 if job.fault == "rate-100-times" else 3e-3
    optimizer = torch.optim.Adam(trained, lr=rate)
    shrink = 1.0
    for step in range(job.steps):
        x = torch.randn(64, INPUTS)
        y = truth(x) + 0.05 * torch.randn(64, 1)
        if job.on("input-constant", step):
            x = torch.ones_like(x)
        if job.on("outliers", step) and step % 3 == 0:
            y[:2] += 300
        if job.once("eps-large", step):
            optimizer.param_groups[0]["eps"] = 1.0
        if job.once("moments-zeroed", step):
            for state in optimizer.state.values():
                state["exp_avg_sq"].zero_()
        if job.on("rate-decays-fast", step):
            shrink *= 0.9
        optimizer.param_groups[0]["lr"] = rate * (1 - 0.8 * step / job.steps) * shrink

        def closure(x: Tensor = x, y: Tensor = y) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
