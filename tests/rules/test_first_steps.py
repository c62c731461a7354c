"""Runs that are wrong from their first step, through the front door."""

import pytest
import torch
from torch.nn import functional as F

import vario
from releases import needs_loss_targets

RULES = ("start_above_chance", "start_diverges", "start_signal", "start_symmetric", "update_high")


def model_of(depth=3, gain=1.0, outputs=10, width=32):
    torch.manual_seed(0)
    layers = []
    for number in range(depth):
        layers += [torch.nn.Linear(16 if number == 0 else width, width), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(width, outputs))
    with torch.no_grad():
        for layer in model[::2]:
            layer.weight.mul_(gain)
    return model


def train(tmp_path, model, lr=1e-3, scale=1.0, steps=40, make=torch.optim.AdamW, criterion=F.cross_entropy, sign=1.0):
    optimizer = make(model.parameters(), lr=lr)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for _ in range(steps):
            x = torch.randn(64, 16)
            y = x[:, :10].argmax(-1) if criterion is F.cross_entropy else x[:, :10]
            loss = sign * criterion(model(scale * x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not loss.isfinite():
                break
    return vario.open_run(monitor.path)


def said(run, *rules):
    return [alert for alert in run.alerts if alert.rule in (rules or RULES)]


@pytest.mark.parametrize("criterion", [F.cross_entropy, F.mse_loss])
def test_a_usual_start_is_silent(tmp_path, criterion):
    assert not said(train(tmp_path, model_of(), criterion=criterion))


@needs_loss_targets
def test_a_rate_far_too_high_is_named_within_a_dozen_steps(tmp_path):
    run = train(tmp_path, model_of(), lr=0.3)
    alerts = said(run, "start_diverges", "update_high")
    assert min(alert.step for alert in alerts) < 12
    (alert,) = said(run, "start_diverges")
    assert "the learning rate is too high" in alert.cause
    assert "of the weights" in alert.text


def test_squares_that_explode_are_told_before_they_overflow(tmp_path):
    run = train(tmp_path, model_of(), lr=50.0, make=torch.optim.SGD, criterion=F.mse_loss)
    assert said(run, "start_diverges", "update_high")
    assert said(run)[0].step < 12


@needs_loss_targets
def test_outputs_that_are_far_too_sure_are_told(tmp_path):
    (alert,) = said(train(tmp_path, model_of(gain=6.0)), "start_above_chance")
    assert "guess among 10 classes costs 2.3" in alert.text
    assert "initialisation is too wide" in alert.cause
    assert alert.severity == "note"


@needs_loss_targets
def test_inputs_that_are_not_normalised_are_the_cause(tmp_path):
    (alert,) = said(train(tmp_path, model_of(), scale=120.0), "start_above_chance")
    assert "inputs are not normalised" in alert.cause


@pytest.mark.parametrize(("gain", "word"), [(12.0, "grow"), (0.05, "die")])
def test_a_signal_that_does_not_last_over_depth_is_told(tmp_path, gain, word):
    model = model_of(depth=16, gain=gain)
    for layer in model[::2]:
        torch.nn.init.zeros_(layer.bias)
    (alert,) = said(train(tmp_path, model, steps=5), "start_signal")
    assert word in alert.text


def test_a_constant_matrix_is_told_and_zeros_are_not(tmp_path):
    model = model_of()
    torch.nn.init.constant_(model[2].weight, 0.1)
    torch.nn.init.zeros_(model[-1].weight)
    (alert,) = said(train(tmp_path, model, steps=5), "start_symmetric")
    assert alert.target == "2.weight"


def test_parameters_that_no_optimizer_has_are_told_once(tmp_path):
    model = model_of()
    optimizer = torch.optim.AdamW([*model[:2].parameters(), *model[4:].parameters()])
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for _ in range(60):
            x = torch.randn(64, 16)
            loss = F.cross_entropy(model(x), x[:, :10].argmax(-1))
            model.zero_grad()
            loss.backward()
            optimizer.step()
    alerts = said(vario.open_run(monitor.path), "settings_change")
    assert {(alert.target, alert.began, alert.severity) for alert in alerts} == {
        ("2.weight", 0, "note"),
        ("2.bias", 0, "note"),
    }
    assert alerts[0].step < 15


def test_a_new_head_on_a_network_that_is_not_trained_is_silent(tmp_path):
    model = model_of()
    optimizer = torch.optim.AdamW(model[-1].parameters())
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for _ in range(60):
            x = torch.randn(64, 16)
            loss = F.cross_entropy(model(x), x[:, :10].argmax(-1))
            model.zero_grad()
            loss.backward()
            optimizer.step()
    assert not vario.open_run(monitor.path).alerts


class Tied(torch.nn.Module):
    """Ids in, logits out of the table that looked the ids up, which is far too wide for that."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(64, 192)

    def forward(self, ids):
        return self.table(ids) @ self.table.weight.T


@needs_loss_targets
def test_ids_are_no_inputs_that_should_be_normalised(tmp_path):
    torch.manual_seed(0)
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for _ in range(6):
            ids = torch.randint(0, 64, (8, 17))
            optimizer.zero_grad()
            F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
    [alert] = said(vario.open_run(monitor.path), "start_above_chance")
    assert "not normalised" not in alert.cause
    assert "initialisation" in alert.cause
