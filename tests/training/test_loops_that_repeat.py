"""Loops that do the same in every step, but more than one pass, one backward pass and one update."""

import pytest
import torch
from torch.nn import functional as F

import vario

STEPS, BEGINS = 300, 200
SHARE = 0.01
"""Within a budget most of these steps record no rows: what every step checks has to find it."""


def accumulated(tmp_path, change, micro_steps=3):
    """Train with accumulated gradients; `change(step, model, optimizer)` runs before each step."""
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (torch.nn.Linear(16, 16), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True, overhead=SHARE) as monitor:
        for step in range(STEPS):
            change(step, model, optimizer)
            optimizer.zero_grad()
            for _ in range(micro_steps):
                x = torch.randn(32, 16)
                (F.mse_loss(model(x), x[:, :1].tanh()) / micro_steps).backward()
            optimizer.step()
    assert not vario.open_run(monitor.path).parts_off
    return vario.open_run(monitor.path)


def cut(step, model, optimizer):
    if step == BEGINS:
        model[4].register_forward_hook(lambda module, args, output: output.detach())


def overwritten(step, model, optimizer):
    if step == BEGINS:
        with torch.no_grad():
            model[4].weight.mul_(0.5)


def test_a_healthy_loop_with_accumulation_is_silent(tmp_path):
    assert not accumulated(tmp_path, lambda *_: None).incidents


def test_a_gradient_that_vanishes_under_accumulation_is_named(tmp_path):
    run = accumulated(tmp_path, cut)
    alerts = [alert for alert in run.alerts if alert.rule in ("gradient_change", "zero_grad")]
    assert {alert.target for alert in alerts} & {"4.weight", "4.bias"}
    assert min(alert.step for alert in alerts) <= BEGINS + 30


def test_a_weight_written_under_accumulation_is_named_at_that_step(tmp_path):
    run = accumulated(tmp_path, overwritten)
    assert (BEGINS, "4.weight") in {
        (alert.step, alert.target) for alert in run.alerts if alert.rule == "unexplained_change"
    }


def adversarial(tmp_path, change, steps=STEPS):
    """A tiny GAN with an optimizer for each part."""
    torch.manual_seed(0)

    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
            self.critic = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    pair = Pair()
    slow = torch.optim.Adam(pair.critic.parameters(), lr=1e-3)
    fast = torch.optim.Adam(pair.generator.parameters(), lr=1e-3)
    ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
    with vario.watch(pair, [slow, fast], directory=tmp_path, name="run", strict=True, overhead=SHARE) as monitor:
        for step in range(steps):
            change(step, pair, slow)
            made = pair.generator(torch.randn(32, 4))
            slow.zero_grad()
            real = pair.critic(torch.randn(32, 8) + 1)
            loss = F.binary_cross_entropy_with_logits(real, ones)
            (loss + F.binary_cross_entropy_with_logits(pair.critic(made.detach()), zeros)).backward()
            if change is not idle or step < BEGINS:
                slow.step()
            fast.zero_grad()
            F.binary_cross_entropy_with_logits(pair.critic(made), ones).backward()
            fast.step()
    assert not vario.open_run(monitor.path).parts_off
    return vario.open_run(monitor.path)


def idle(step, pair, optimizer):
    pass


def written(step, pair, optimizer):
    if step == BEGINS:
        with torch.no_grad():
            pair.critic[2].weight.mul_(3)


def test_an_optimizer_that_no_longer_takes_its_turn_is_named(tmp_path):
    run = adversarial(tmp_path, idle)
    (alert,) = [alert for alert in run.alerts if alert.rule == "optimizer_idle"]
    assert (alert.target, alert.began, alert.severity) == ("critic", BEGINS, "note")


def test_a_weight_of_one_of_two_optimizers_is_named_at_that_step(tmp_path):
    run = adversarial(tmp_path, written)
    assert (BEGINS, "critic.2.weight") in {
        (alert.step, alert.target) for alert in run.alerts if alert.rule == "unexplained_change"
    }


@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_gradients_of_another_scale_are_told_at_any_interval(tmp_path, factor):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True, overhead=SHARE) as monitor:
        for step in range(STEPS):
            x = torch.randn(64, 16)
            loss = (model(x) - x[:, :1] - 0.5 * torch.randn(64, 1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            if step == BEGINS:
                for parameter in model.parameters():
                    parameter.register_hook(lambda gradient: factor * gradient)
            optimizer.step()
            monitor.log(loss=loss.item())
    alerts = [alert for alert in vario.open_run(monitor.path).alerts if alert.rule == "gradient_scale"]
    assert len(alerts) == (factor > 1)
    assert all(abs(alert.began - BEGINS) <= 4 for alert in alerts)
