"""A common factor of all gradients that no single one shows."""

import pytest
import torch
from torch import nn

import vario


def trained(path, factor, steps=200, struck=120):
    """Adam on noisy rows; from `struck` on the loss is scaled before backward, which Adam does not notice."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(5)), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    teacher = torch.randn(16, 1)
    with vario.watch(model, optimizer, directory=str(path), name="run", overhead="off", strict=True) as monitor:
        for step in range(steps):
            x = torch.randn(24, 16)
            loss = (model(x) - (x @ teacher).tanh() - 0.5 * torch.randn(24, 1)).square().mean()
            optimizer.zero_grad()
            (loss * (factor if step >= struck else 1.0)).backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    return vario.open_run(path / "run")


@pytest.mark.parametrize("factor", [0.4, 2.5])
def test_a_common_factor_is_found_from_all_gradients_together(tmp_path, factor):
    run = trained(tmp_path, factor)
    alert = next(alert for alert in run.alerts if alert.rule == "gradient_scale")
    assert alert.scope == "global"
    assert 118 <= alert.began <= 124
    assert alert.step <= 132
    assert ("larger" if factor > 1 else "smaller") in alert.text
    assert vario.diagnose(run).hypotheses[0].name in ("loop", "data")


def test_nothing_is_said_without_one(tmp_path):
    assert not [alert for alert in trained(tmp_path, 1.0).alerts if alert.rule == "gradient_scale"]
