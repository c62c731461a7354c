"""Rows that do not change, and validation losses that leave their past, in small real trainings."""

import math

import pytest
import torch
from torch import nn

import vario


def trained(path, steps, rows_of, evaluated=None, every=10, **options):
    """`rows_of(step, x)` changes a batch; `evaluated(step, loss)` is logged as `val_loss` at every tenth step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with vario.watch(model, optimizer, directory=str(path), name="run", strict=True, **options) as monitor:
        for step in range(steps):
            x = rows_of(step, torch.randn(16, 6))
            loss = (model(x)[:, 0] - x[:, 0] * x[:, 1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
            if evaluated is not None and step % every == every - 1:
                monitor.log(val_loss=evaluated(step, 1.0 + 0.05 * math.sin(step)))
    return vario.open_run(path / "run")


def said(run, rule):
    return [alert for alert in run.alerts if alert.rule == rule]


def same(step, x):
    return x


def test_two_rows_of_sixteen_that_stay_are_found(tmp_path):
    kept = torch.randn(2, 6)

    def stuck(step, x):
        return torch.cat([kept, x[2:]]) if step >= 50 else x

    run = trained(tmp_path, 90, stuck)
    (alert,) = said(run, "data_stuck_rows")
    assert (alert.step, alert.severity, alert.scope) == (57, "warn", "batch")
    assert alert.text.startswith("12.5 % of the batch's rows")
    assert next(iter(vario.diagnose(run).hypotheses)).name == "data"


def test_rows_that_are_in_every_batch_from_the_start_are_noted(tmp_path):
    kept = torch.randn(2, 6)
    run = trained(tmp_path, 60, lambda step, x: torch.cat([kept, x[2:]]))
    assert [alert.severity for alert in said(run, "data_stuck_rows")] == ["note"]


def test_a_small_table_in_epochs_and_all_rows_in_each_batch_are_not_reported(tmp_path):
    table = torch.randn(24, 6)
    assert not said(trained(tmp_path / "few", 80, lambda step, x: table[torch.randperm(24)[:16]]), "data_stuck_rows")
    assert not said(trained(tmp_path / "all", 80, lambda step, x: table), "data_stuck_rows")


@pytest.mark.parametrize("bad", [3.0, math.nan])
def test_a_validation_loss_that_leaves_alone_is_reported(tmp_path, bad):
    run = trained(tmp_path, 120, same, lambda step, loss: bad if step >= 80 else loss)
    alert = said(run, "validation_shift")[0]
    assert (alert.step, alert.severity, alert.target) == (89, "warn", "val_loss")
    assert "the training loss did not rise with it" in alert.text


def test_a_validation_loss_that_rises_with_the_training_loss_is_not_reported(tmp_path):
    run = trained(tmp_path, 120, lambda step, x: 3 * x if step >= 80 else x, lambda step, loss: loss + 5 * (step >= 80))
    assert not said(run, "validation_shift")


def test_slow_overfitting_is_not_a_shift(tmp_path):
    run = trained(tmp_path, 200, same, lambda step, loss: loss + 0.01 * step)
    assert not said(run, "validation_shift")


class Scored(nn.Module):
    """A classifier that is given its labels and returns its loss."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x, labels):
        return nn.functional.cross_entropy(self.layers(x), labels)


@pytest.mark.parametrize("is_broken", [True, False])
def test_labels_that_become_one_class_are_found_although_the_loss_falls(tmp_path, is_broken):
    torch.manual_seed(0)
    model = Scored()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=str(tmp_path), name="run", overhead="off", strict=True) as monitor:
        for step in range(140):
            x = torch.randn(32, 6)
            labels = torch.zeros(32, dtype=torch.long) if is_broken and step >= 95 else x[:, :4].argmax(1)
            loss = model(x, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    run = vario.open_run(tmp_path / "run")
    found = said(run, "input_constant")
    assert [(alert.step, alert.severity, alert.scope) for alert in found] == (
        [(110, "warn", "batch")] if is_broken else []
    )
    if is_broken:
        assert "labels" in {reason.name for reason in vario.diagnose(run).hypotheses[:2]}
