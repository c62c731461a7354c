"""Schedules and first weights that are wrong from the start, through the front door."""

import pytest
import torch

import vario


def train(tmp_path, schedule=None, steps=240, epoch=1, scale=1.0, lr=1e-3):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(20, 16), torch.nn.Flatten(), torch.nn.Linear(64, 20))
    with torch.no_grad():
        model[0].weight.mul_(scale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = schedule(optimizer) if schedule else None
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(steps):
            tokens = torch.randint(0, 20, (16, 4))
            loss = torch.nn.functional.cross_entropy(model(tokens), tokens[:, 0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if scheduler and (step + 1) % epoch == 0:
                scheduler.step()
    return vario.open_run(monitor.path)


def said(run, *rules):
    return [alert for alert in run.alerts if alert.rule in rules]


def warm_up(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 400))


@pytest.mark.parametrize("epoch", [40, 1000])
def test_a_warm_up_that_makes_no_headway_is_told_once(tmp_path, epoch):
    [alert] = said(train(tmp_path, warm_up, epoch=epoch), "lr_schedule")
    assert 150 <= alert.step < 240
    assert ("has changed in" if epoch == 40 else "has not changed in") in alert.text
    assert "once an epoch, not once an update, or never" in alert.cause
    assert alert.severity == "note"


def test_a_rate_that_grows_without_end_is_told(tmp_path):
    def grows(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.04**step)

    [alert] = said(train(tmp_path, grows, lr=1e-5), "lr_schedule")
    assert "rises in each step" in alert.text
    assert alert.step < 120


@pytest.mark.parametrize(
    "schedule",
    [
        warm_up,
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=300),
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 240),
        lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97),
        lambda optimizer: torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-4, 1e-3, 100, cycle_momentum=False),
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [30], 0.01),
    ],
)
def test_usual_schedules_are_silent(tmp_path, schedule):
    assert not said(train(tmp_path, schedule), "lr_schedule")


def test_a_table_that_starts_far_too_wide_is_named(tmp_path):
    [alert] = said(train(tmp_path, scale=30.0, steps=3), "start_wide")
    assert (alert.target, alert.severity) == ("0.weight", "note")
    assert alert.value == pytest.approx(30, rel=0.2)
    assert not said(train(tmp_path / "usual", steps=3), "start_wide")
