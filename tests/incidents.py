"""Trainings in which something happens at a known step: shared by the tests of notices and actions."""

import torch

import vario
from models import Perceptron, batch
from vario.rules import Finding, rule


def recurring(steps, severity="page", first=5):
    """A rule that finds something at `first` and every so many steps after it; 11 and more are incidents each."""

    @rule("exact")
    def recurring_finding(step):
        """Finds something again and again."""
        if step.number >= first and (step.number - first) % steps == 0:
            yield Finding(f"step {step.number} is special", "gradient", "up.weight", 1.0, severity=severity)

    return recurring_finding


def train(steps=20, nan_at=None, watched=True, until_stop=False, model=None, each_step=None, **options):
    """Train a tiny model, watched or not; the losses and the Monitor."""
    torch.manual_seed(0)
    model = model or Perceptron(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = vario.watch(model, optimizer, **{"strict": True, **options}) if watched else None
    losses = []
    try:
        for step in range(steps):
            optimizer.zero_grad()
            rows = batch(step).to(next(model.parameters()).dtype)
            loss = model(rows).square().mean()
            if step == nan_at:
                loss = loss * float("nan")
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if monitor is not None:
                monitor.log(loss=loss)
                # So that incidents come at the same step each time, however busy the machine is.
                monitor.wait()
                if each_step is not None:
                    each_step(step, monitor, model)
                if until_stop and monitor.should_stop:
                    break
    finally:
        if monitor is not None:
            monitor.close()
    return losses, monitor
