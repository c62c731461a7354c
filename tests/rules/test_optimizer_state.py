"""Optimizer state that changes between two updates, at the default intervals."""

import copy

import pytest
import torch
from torch import nn

import vario

STEPS, STRUCK = 60, 33


def trained(path, strike, make=torch.optim.Adam, **options):
    """Train an MLP; `strike(model, optimizer)` comes between two updates that no interval of ten meets."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = make(model.parameters(), lr=1e-3)
    teacher = torch.randn(8, 2)
    options = {"overhead": "off", "strict": True, **options}
    with vario.watch(model, optimizer, directory=str(path), name="run", **options) as monitor:
        for step in range(STEPS):
            if step == STRUCK:
                with torch.no_grad():
                    strike(model, optimizer)
            x = torch.randn(32, 8)
            loss = (model(x) - x @ teacher).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    return vario.open_run(path / "run")


def said(run):
    return [alert for alert in run.alerts if alert.rule == "state_changed"]


def momentum(parameters, lr):
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


@pytest.mark.parametrize(("make", "key"), [(torch.optim.Adam, "exp_avg"), (momentum, "momentum_buffer")])
def test_state_of_another_parameter_is_named_with_both(tmp_path, make, key):
    def swap(model, optimizer):
        one, other = optimizer.state[model[2].bias], optimizer.state[model[0].bias]
        one[key], other[key] = other[key], one[key]

    (alert,) = said(trained(tmp_path, swap, make))
    assert (alert.step, alert.severity, alert.kind) == (STRUCK, "page", "exact")
    assert "'0.bias', became that of '2.bias'" in alert.text
    assert "2 parameters" in alert.text


def test_state_of_one_parameter_that_is_set_to_zero(tmp_path):
    def clear(model, optimizer):
        optimizer.state[model[2].weight]["exp_avg_sq"].zero_()

    (alert,) = said(trained(tmp_path, clear))
    assert (alert.step, alert.severity, alert.target) == (STRUCK, "warn", "2.weight")
    assert "'2.weight' was set to zero" in alert.text


def test_state_that_was_saved_in_another_order(tmp_path):
    def load(model, optimizer):
        saved = copy.deepcopy(optimizer.state_dict())
        states = saved["state"]
        # The two biases of 16 numbers fit each other's place, as do layers that were saved in another order.
        states[1], states[3] = states[3], states[1]
        optimizer.load_state_dict(saved)

    (alert,) = said(trained(tmp_path, load))
    assert (alert.step, alert.severity) == (STRUCK, "page")


def test_all_state_that_was_scaled_is_one_finding(tmp_path):
    def scale(model, optimizer):
        for state in optimizer.state.values():
            state["exp_avg_sq"].mul_(100)

    (alert,) = said(trained(tmp_path, scale))
    assert (alert.step, alert.scope, alert.severity) == (STRUCK, "global", "warn")


def test_a_checkpoint_that_is_loaded_as_it_was_is_not_reported(tmp_path):
    def reload(model, optimizer):
        model.load_state_dict(copy.deepcopy(model.state_dict()))
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    assert not said(trained(tmp_path, reload))


def test_an_older_checkpoint_of_weights_and_state_is_only_noted(tmp_path):
    def go_back(model, optimizer):
        for weight in model.parameters():
            weight.mul_(0.99)
            optimizer.state[weight]["exp_avg"].mul_(0.5)

    (alert,) = said(trained(tmp_path, go_back))
    assert alert.severity == "note"


def test_bfloat16_state(tmp_path):
    def swap(model, optimizer):
        one, other = optimizer.state[model[2].bias], optimizer.state[model[0].bias]
        one["exp_avg"], other["exp_avg"] = other["exp_avg"], one["exp_avg"]

    class Half(torch.optim.Adam):
        def step(self, closure=None):
            super().step(closure)
            for state in self.state.values():
                for key in ("exp_avg", "exp_avg_sq"):
                    state[key] = state[key].bfloat16().float()

    (alert,) = said(trained(tmp_path, swap, Half))
    assert alert.severity == "page"
