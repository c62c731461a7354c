"""What a NaN's diagnosis says of the rest of its step: only what was recorded of it."""

import pytest
import torch
from courses import Course, summary
from torch import nn

import vario


class Breaks(nn.Module):
    """Makes a NaN in one step, on the way there or on the way back."""

    def __init__(self, step, on_the_way_back):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 1)
        self.step, self.on_the_way_back = step, on_the_way_back
        self.number = 0

    def forward(self, x):
        hidden = self.first(x)
        if self.number == self.step and self.on_the_way_back:
            hidden.register_hook(lambda gradient: gradient * float("nan"))
        elif self.number == self.step:
            hidden = hidden * float("nan")
        self.number += 1
        return self.last(hidden).square().mean()


def cause(tmp_path, step, on_the_way_back):
    torch.manual_seed(0)
    model = Breaks(step, on_the_way_back)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with vario.watch(model, optimizer, directory=tmp_path, name="run") as monitor:
        for _ in range(step + 3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).backward()
            optimizer.step()
    stored = [incident.cause for incident in vario.open_run(monitor.path).incidents]
    replayed = vario.diagnose(vario.open_run(monitor.path), "replay").first.cause
    assert stored[0] == replayed
    return replayed


def test_a_forward_pass_that_was_not_recorded_is_not_called_finite(tmp_path):
    said = cause(tmp_path, 13, on_the_way_back=False)
    assert said.startswith("the forward pass or the loss function, before the backward pass: loss_local is nan")
    assert "no activation was recorded in this step" in said


def test_where_only_the_loss_was_seen_the_diagnosis_says_so(tmp_path):
    said = cause(tmp_path, 13, on_the_way_back=True)
    assert said.startswith("the backward pass produced it at 'first.")
    assert "loss_local was " in said
    assert said.endswith("No activation was recorded in this step")


@pytest.mark.parametrize(
    ("on_the_way_back", "expected"),
    [
        (True, "the recorded activations were finite; the backward pass produced it at"),
        (False, "the input of 'last' was already non-finite"),
    ],
)
def test_what_was_recorded_is_told(tmp_path, on_the_way_back, expected):
    assert cause(tmp_path, 20, on_the_way_back).startswith(expected)


@pytest.mark.parametrize(
    ("quantity", "ranks", "expected"),
    [
        ("gradient", 4, "any of the 4 ranks, which sum their gradients at 'w': on this one loss was 1.5"),
        (
            "gradient_local",
            4,
            "the backward pass produced it at 'w': loss was 1.5. No activation was recorded in this step",
        ),
        ("gradient", 1, "the backward pass produced it at 'w': loss was 1.5. No activation was recorded in this step"),
    ],
)
def test_a_gradient_that_ranks_have_added_up_accuses_no_rank(quantity, ranks, expected):
    course = Course(["non_finite"], ranks=ranks)
    alerts = course.step((quantity, {"w": summary(nans=1)}), scalars={"loss": 1.5})
    assert {alert.cause for alert in alerts} == {expected}


def broken_batch(tmp_path, step, bad):
    """A loop in which one element of one batch is not finite, long after intervals have become long."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    every = {"activation": 100, "activation_gradient": 100, "weight": 100, "update": 100}
    options = {"every": every, "overhead": "2%", "strict": True}
    with vario.watch(model, optimizer, directory=tmp_path, name="run", **options) as monitor:
        for number in range(step + 8):
            x = torch.randn(48, 64)
            if number == step:
                x[7, 11] = bad
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), torch.randint(0, 4, (48,))).backward()
            optimizer.step()
    return vario.diagnose(vario.open_run(monitor.path)).first


@pytest.mark.parametrize(("step", "bad"), [(130, float("nan")), (130, float("inf")), (100, float("nan"))])
def test_a_batch_that_is_not_finite_is_named_as_the_root_cause(tmp_path, step, bad):
    first = broken_batch(tmp_path, step, bad)
    assert first.step == first.lead.step == step
    assert first.severity == "page"
    assert "input" in first.cause
    assert "already non-finite" in first.cause


def test_what_weights_spread_in_the_next_steps_is_no_root_cause(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with vario.watch(
        model, optimizer, directory=tmp_path, name="run", every={"activation": 100}, overhead="2%"
    ) as monitor:
        for number in range(140):
            loss = model(torch.randn(16, 8)).square().mean()
            if number == 130:
                loss = loss + (loss * 0).log() * 0
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run = vario.open_run(monitor.path)
    first = vario.diagnose(run).first
    assert first.lead.step == 130
    assert first.cause.startswith("the forward pass or the loss function, before the backward pass")
    assert {alert.step for alert in run.alerts if alert.rule == "non_finite" and alert.quantity != "scalar"} == {130}
