"""Teachers, targets and averages that run beside the trained model, through the front door."""

import copy

import pytest
import torch
from torch.nn import functional as F

import vario

STEPS, AT = 160, 100


def teacher(p=0.3):
    layers = torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(p), torch.nn.Linear(16, 4)
    return torch.nn.Sequential(*layers).requires_grad_(False).eval()


def distil(tmp_path, beside, each_step=lambda beside, model, step: beside):
    """Train a model on what another one says."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))
    beside = beside(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(STEPS):
            beside = each_step(beside, model, step)
            x = torch.randn(32, 6)
            with torch.no_grad():
                wanted = beside(x)
            loss = (model(x) - wanted - x[:, :4]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not any("_vario_" in name for module in beside.modules() for name in vars(module))
    assert not any(module._forward_pre_hooks for module in beside.modules())
    return [alert for alert in vario.open_run(monitor.path).alerts if alert.rule == "companion_change"]


def follow(beside, model, step, until=STEPS):
    with torch.no_grad():
        for slow, fast in zip(beside.parameters(), model.parameters(), strict=True):
            slow.lerp_(fast, 0.1 if step < until else 0.0)
    return beside


def test_a_teacher_that_leaves_evaluation_mode_is_told(tmp_path):
    def change(beside, model, step):
        return beside.train() if step == AT else beside

    [alert] = distil(tmp_path, lambda model: teacher(), change)
    assert "switched to training mode" in alert.text
    assert AT <= alert.began < AT + 10
    assert "eval()" in alert.cause


def test_a_teacher_that_never_was_in_evaluation_mode_is_told(tmp_path):
    [alert] = distil(tmp_path, lambda model: teacher().train())
    assert "in training mode" in alert.text
    assert alert.began == 0


def test_an_average_that_is_no_longer_updated_is_stale(tmp_path):
    [alert] = distil(tmp_path, copy.deepcopy, lambda *state: follow(*state, until=60))
    assert "has not changed since step" in alert.text
    assert "stale" in alert.cause
    assert 55 <= alert.began <= 70


def test_an_average_that_is_made_anew_is_told(tmp_path):
    def change(beside, model, step):
        if step == AT:
            beside = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.ReLU(), torch.nn.Linear(24, 4))
        return follow(beside, model, step)

    alerts = distil(tmp_path, copy.deepcopy, change)
    assert [alert.target.partition(":")[0] for alert in alerts] == ["companion_change/apart"]
    assert "made anew" in alerts[0].cause


def test_a_teacher_that_is_overwritten_is_told(tmp_path):
    def change(beside, model, step):
        if step == AT:
            torch.nn.init.normal_(beside[0].weight)
        return beside

    [alert] = distil(tmp_path, lambda model: teacher(), change)
    assert "never did before" in alert.text


def sync(beside, model, step):
    if step % 25 == 0:
        beside.load_state_dict(model.state_dict())
    return beside


@pytest.mark.parametrize(
    ("beside", "each_step"),
    [
        (lambda model: teacher(), lambda beside, model, step: beside),
        (copy.deepcopy, follow),
        (copy.deepcopy, sync),
        (lambda model: teacher(p=0.0)[::3].train(), lambda beside, model, step: beside),
    ],
)
def test_usual_companions_are_silent(tmp_path, beside, each_step):
    assert not distil(tmp_path, beside, each_step)


@pytest.mark.parametrize("copies", [True, False])
def test_a_loss_that_moves_as_its_target_network_is_copied_is_no_shift(tmp_path, copies):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(140):
            x, later = torch.randn(64, 4), torch.randn(64, 4)
            reward = 1.0 if copies or step < 100 else 3.0
            with torch.no_grad():
                wanted = reward + 0.1 * x[:, 0] + 0.9 * target(later).max(1).values
            loss = F.smooth_l1_loss(model(x).gather(1, (x[:, :1] > 0).long()).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if copies and step == 100:
                target.load_state_dict(model.state_dict())
    said = [alert.rule for alert in vario.open_run(monitor.path).alerts]
    assert ("loss_shift" in said) is not copies
