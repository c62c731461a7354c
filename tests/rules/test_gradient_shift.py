"""Gradients that change together and for good, through the front door."""

import time

import pytest
import torch

import vario

STEPS, AT = 240, 160


def train(tmp_path, change=lambda x, y: (x, y), rate=None, seconds=0.0, **options):
    torch.manual_seed(0)
    layers = [
        torch.nn.Linear(16, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 32),
        torch.nn.Tanh(),
        torch.nn.Linear(32, 4),
    ]
    model = torch.nn.Sequential(*layers)
    wanted = torch.randn(16, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True, **options) as monitor:
        for step in range(STEPS):
            time.sleep(seconds)
            x = torch.randn(64, 16)
            y = (x @ wanted).tanh() + 0.3 * torch.randn(64, 4)
            if step >= AT:
                x, y = change(x, y)
            if rate is not None:
                optimizer.param_groups[0]["lr"] = rate(step)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return [alert for alert in vario.open_run(monitor.path).alerts if alert.rule == "gradient_shift"]


def test_a_feature_that_swamps_the_others_changes_the_pattern(tmp_path):
    def change(x, y):
        return torch.cat([x[:, :4] * 3, torch.zeros_like(x[:, 4:])], dim=1), y

    [alert] = train(tmp_path, change)
    assert AT <= alert.step < AT + 40
    assert alert.unseen_from <= AT
    assert alert.severity == "note"


def test_targets_of_another_size_change_all_gradients(tmp_path):
    # The budget records gradients in few of these steps, and their norms are looked at in most.
    # On a busy machine the budget may leave too few looks: then the training is tried again.
    tries = (train(tmp_path / str(at), lambda x, y: (x, 4 * y), seconds=0.005, overhead=0.1) for at in range(3))
    [alert] = next((found for found in tries if found), [])
    assert AT <= alert.step < AT + 70
    assert "larger" in alert.text


@pytest.mark.parametrize("rate", [None, lambda step: 1e-3 * (0.1 if step >= AT else 1), lambda step: 1e-3 * 0.99**step])
def test_ordinary_training_and_its_schedules_are_silent(tmp_path, rate):
    assert not train(tmp_path, rate=rate)
