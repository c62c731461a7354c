"""Parameters that nothing trains, told after the first updates."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import vario


class Mixed(nn.Module):
    """A stem, experts that hold most parameters, and a head; `cut` detaches what the experts return."""

    def __init__(self, cut=False):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.head = nn.Linear(8, 3)
        self.cut = cut

    def forward(self, inputs):
        hidden = self.stem(inputs)
        mixed = sum(expert(hidden.detach() if self.cut else hidden) for expert in self.experts)
        return self.head(mixed.detach() if self.cut else mixed + hidden)


def told(folder, model, chosen, steps=20):
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(chosen, lr=1e-3)
    with vario.watch(model, optimizer, directory=folder, name="run", strict=True) as monitor:
        for _ in range(steps):
            inputs = torch.randn(16, 8)
            F.cross_entropy(model(inputs), inputs[:, :3].argmax(-1)).backward()
            optimizer.step()
            model.zero_grad()
    return [alert for alert in vario.open_run(monitor.path).alerts if alert.rule == "settings_change"]


def of(*parts):
    return [parameter for part in parts for parameter in part.parameters()]


def test_most_parameters_are_missing_from_the_optimizer(tmp_path):
    model = Mixed()
    alerts = told(tmp_path, model, of(model.stem, model.head))
    assert {alert.target.partition(".")[0] for alert in alerts} == {"experts"}
    assert {(alert.severity, alert.since) for alert in alerts} == {("note", 0)}
    assert "is in no optimizer, as 12 parameters are" in alerts[0].text


def test_an_optimizer_of_a_new_head_is_meant(tmp_path):
    model = Mixed()
    assert not told(tmp_path, model, of(model.head))


def test_most_parameters_of_the_optimizer_are_cut_off_from_the_loss(tmp_path):
    model = Mixed(cut=True)
    alerts = told(tmp_path, model, of(model))
    assert {alert.severity for alert in alerts} == {"warn"}
    assert {alert.target.partition(".")[0] for alert in alerts} <= {"stem", "experts"}
    assert "has had no gradient so far, like 88 % of the parameters of its optimizer" in alerts[0].text


@pytest.mark.parametrize("turns", [False, True])
def test_an_unused_head_is_nothing_to_tell(tmp_path, turns):
    """`turns`: another head in each step; a head that gets a gradient now and then is used."""

    class Headed(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(*(nn.Linear(8, 8) for _ in range(10)))
            self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(3 if turns else 2))
            self.calls = 0

        def forward(self, inputs):
            self.calls += 1
            return self.heads[self.calls % 3 if turns else 0](self.body(inputs))

    model = Headed()
    assert not told(tmp_path, model, of(model))
