"""What a loss is computed by changes, through the front door."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import vario

STEPS, AT = 280, 140


class Block(torch.nn.Module):
    """A layer whose code is chosen from outside."""

    def __init__(self, code, is_second=False):
        super().__init__()
        self.is_second = is_second
        self.linear, self.out, self.code = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16), code

    def forward(self, x):
        hidden = torch.tanh(self.linear(x)) * self.code.scale
        if self.code.only and self.is_second:
            hidden = hidden.relu()
        if self.code.norm:
            hidden = functional.layer_norm(hidden, (16,))
        return (x if self.code.skip else x.detach()) + self.out(hidden)


def train(tmp_path, change=lambda code, step: None, steps=STEPS):
    torch.manual_seed(0)
    code = SimpleNamespace(
        scale=0.5, norm=True, only=False, skip=True, temperature=0.2, detach=False, penalty=lambda step: False
    )
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), Block(code), Block(code, is_second=True), torch.nn.Linear(16, 5)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(steps):
            change(code, step)
            x = torch.randn(32, 8)
            logits = model(x) / code.temperature
            extra = 0.1 * logits.square().mean()
            loss = functional.cross_entropy(logits, x[:, :5].argmax(1)) + (extra.detach() if code.detach else extra)
            if code.penalty(step):
                loss = loss + model[0].weight.abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [alert for alert in vario.open_run(monitor.path).alerts if alert.rule == "graph_change"]


def sets(**values):
    def change(code, step):
        if step == AT:
            vars(code).update(values)

    return change


def test_a_temperature_that_changes_is_named_with_both_numbers(tmp_path):
    [alert] = train(tmp_path, sets(temperature=2.0))
    assert "divides by 2, always 0.2 before" in alert.text
    assert alert.scope == "batch"
    assert AT <= alert.began < AT + 60
    assert alert.unseen_from <= AT
    assert alert.severity == "note"


def test_a_scale_inside_all_blocks_is_put_down_to_the_model(tmp_path):
    [alert] = train(tmp_path, sets(scale=0.7))
    assert "multiplies by 0.7, always 0.5 before" in alert.text
    assert "in several parts of the model" in alert.text


def test_a_normalisation_that_is_skipped_is_gone(tmp_path):
    [alert] = train(tmp_path, sets(norm=False))
    assert "fewer operations" in alert.text
    assert "NativeLayerNorm" in alert.text
    assert "left out now" in alert.cause


def test_a_term_that_is_detached_is_gone(tmp_path):
    [alert] = train(tmp_path, sets(detach=True))
    assert "fewer operations" in alert.text
    assert "detach" in alert.cause
    assert alert.scope == "batch"


@pytest.mark.parametrize("every", [2, 7, 16])
def test_a_term_of_every_few_steps_is_usual(tmp_path, every):
    def change(code, step):
        code.penalty = lambda step: step % every == 0

    assert not train(tmp_path, change, steps=400)


def test_a_number_that_a_schedule_moves_is_usual(tmp_path):
    def change(code, step):
        code.temperature = 1 + step / STEPS

    assert not train(tmp_path, change)


def test_a_single_odd_step_is_no_change(tmp_path):
    def change(code, step):
        code.norm = step not in (AT, AT + 1)

    assert not train(tmp_path, change)


def test_nothing_changes(tmp_path):
    assert not train(tmp_path)


def test_what_one_module_does_is_put_down_to_it(tmp_path):
    [alert] = train(tmp_path, sets(only=True))
    assert alert.target == "2"
    assert "more operations in '2'" in alert.text


def test_a_branch_that_is_detached_but_reaches_the_loss_another_way_is_told(tmp_path):
    [alert] = train(tmp_path, sets(skip=False))
    assert "passes gradients to 1 of its inputs, always 2 before" in alert.text
    assert "detached" in alert.cause
