"""What goes into the model, seen at every step by a few elements."""

import pytest
import torch

import vario
from vario.rules.data.input_change import input_change

STEPS, BEGINS = 260, 150


def train(tmp_path, batch, steps=STEPS, model=None):
    """Train a small network on `batch(step)`. Return its run."""
    torch.manual_seed(0)
    model = model or torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.GELU(), torch.nn.Linear(24, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(steps):
            inputs = batch(step)
            loss = (model(inputs) - inputs.float().mean(-1, keepdim=True).tanh()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    assert not vario.open_run(monitor.path).parts_off
    return vario.open_run(monitor.path)


def said(run):
    return [alert for alert in run.alerts if alert.rule == input_change.name]


def mostly_zero(step):
    x = torch.randn(32, 12)
    return x if step < BEGINS else x * (torch.arange(12) < 5)


STUCK = torch.randn(32, 12)
FAULTS = {
    "scale": (lambda step: torch.randn(32, 12) * (1.0 if step < BEGINS else 20.0), "standard deviation of 'input'"),
    "offset": (lambda step: torch.randn(32, 12) + (0.0 if step < BEGINS else 5.0), "mean of 'input'"),
    "padding": (mostly_zero, "elements of 'input' of the model are the same number"),
    "blank": (
        lambda step: torch.randn(32, 12) * (step < BEGINS),
        "elements of 'input' of the model are the same number",
    ),
    "stuck": (lambda step: torch.randn(32, 12) if step < BEGINS else STUCK, "same for several steps in a row"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_input_that_changes_is_told_with_its_step(tmp_path, fault):
    batch, words = FAULTS[fault]
    (alert,) = said(train(tmp_path, batch))
    assert words in alert.text
    assert abs(alert.began - BEGINS) <= 5
    assert alert.scope == "batch"
    assert alert.severity == ("warn" if fault == "stuck" else "note")


def curriculum(step):
    return torch.randn(32, 12) * (1 + step / 100)


def of_many_lengths(step):
    x = torch.randn(32, 12)
    x[:, 12 - step * 7 % 9 :] = 0
    return x


def with_noise_between(step):
    return torch.randn(8 + step % 5, 12) if step % 7 else torch.rand(32, 12) * 4


@pytest.mark.parametrize("batch", [curriculum, of_many_lengths, with_noise_between])
def test_inputs_that_vary_by_design_are_silent(tmp_path, batch):
    assert not said(train(tmp_path, batch))


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 9])
def test_a_few_batches_in_the_same_order_in_each_epoch_are_silent(tmp_path, num):
    batches = [torch.randn(32, 12) for _ in range(num)]
    assert not said(train(tmp_path, lambda step: batches[step % num], steps=400))


def test_two_loaders_that_take_turns_are_silent(tmp_path):
    assert not said(train(tmp_path, lambda step: torch.randn(32, 12) * (1 if step % 2 else 30) + step % 2))


def test_an_evaluation_of_other_data_is_no_change(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 24), torch.nn.Dropout(0.1), torch.nn.Linear(24, 1))

    def batch(step):
        if step >= BEGINS:
            model.eval()
            with torch.no_grad():
                model(50 * torch.randn(32, 12))
            model.train()
        return torch.randn(32, 12)

    assert not said(train(tmp_path, batch, model=model))


def test_made_images_of_a_generator_that_learns_are_no_change(tmp_path):
    torch.manual_seed(0)
    critic, maker = torch.nn.Linear(12, 1), torch.nn.Linear(4, 12)
    slow, fast = (torch.optim.SGD(part.parameters(), lr=0.05) for part in (critic, maker))
    with vario.watch(critic, slow, directory=tmp_path, name="run", strict=True) as monitor:
        for _ in range(STEPS):
            made = maker(torch.randn(32, 4))
            slow.zero_grad()
            (critic(made.detach()).mean() - critic(torch.randn(32, 12) + 3).mean()).backward()
            slow.step()
            fast.zero_grad()
            (maker(torch.randn(32, 4)) - 3).square().mean().backward()
            fast.step()
    assert not said(vario.open_run(monitor.path))
