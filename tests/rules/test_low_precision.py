"""Rules about low precision on real trainings: they find what float16 does not hold, and float32 says nothing."""

import pytest
import torch

import vario
from vario.core.elements.bins import QUANTITY

NAMES = ["digits_lost", "overflow_ahead", "outlier_features"]


def train(tmp_path, dtype, size=1.0, weight=None, outlier=None, steps=4):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 8)).to(dtype)
    if weight is not None:
        with torch.no_grad():
            model[0].weight[3, 4] = weight
    if outlier is not None:
        with torch.no_grad():
            model[2].bias[1] = outlier
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    options = {"quantities": ["gradient", "weight", "activation", QUANTITY], "every": 1, "strict": True, "rules": NAMES}
    with vario.watch(model, optimizer, directory=tmp_path, name="run", **options):
        for _ in range(steps):
            optimizer.zero_grad()
            (model(torch.randn(1024, 64).to(dtype)).float().mean() * size).backward()
            optimizer.step()
    return vario.open_run(tmp_path / "run")


def found(run):
    return {(alert.rule, alert.target, alert.severity) for alert in vario.check(run, replay=True, rules=NAMES).alerts}


def test_gradients_below_the_normal_numbers_of_float16_are_a_note(tmp_path):
    run = train(tmp_path, torch.float16, size=1e-3)
    [alert] = [alert for alert in run.alerts if alert.target == "0.weight"]
    assert (alert.rule, alert.severity, alert.quantity) == ("digits_lost", "note", "gradient")
    assert "smallest normal number of float16" in alert.text
    assert found(run) == {("digits_lost", "0.weight", "note"), ("digits_lost", "2.weight", "note")}


def test_a_weight_close_to_the_largest_float16_is_reported(tmp_path):
    run = train(tmp_path, torch.float16, weight=40_000.0)
    assert {(alert.rule, alert.target, alert.severity) for alert in run.alerts} == {
        ("overflow_ahead", "0.weight", "warn")
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_few_very_large_elements_of_an_activation_are_for_reports_only(tmp_path, dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 2048)).to(dtype)
    with torch.no_grad():
        model[0].bias[1] = 5000.0
    options = {"quantities": ["activation", QUANTITY], "every": 1, "strict": True, "rules": NAMES}
    with vario.watch(model, directory=tmp_path, name="run", **options) as monitor:
        for _ in range(3):
            model(torch.randn(32, 64).to(dtype)).float().mean().backward()
            monitor.step()
    run = vario.open_run(tmp_path / "run")
    assert run.incidents == []
    assert ("outlier_features", "0:output", "note") in found(run)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_precisions_say_nothing_about_the_same(tmp_path, dtype):
    run = train(tmp_path, dtype, size=1e-3, weight=40_000.0)
    assert found(run) == set()
    assert run.alerts == []


def test_a_float32_model_with_outliers_says_nothing(tmp_path):
    run = train(tmp_path, torch.float32, outlier=1e6)
    assert found(run) == set()


def test_a_healthy_float16_training_says_nothing(tmp_path):
    run = train(tmp_path, torch.float16, size=300.0, steps=8)
    assert found(run) == set()
