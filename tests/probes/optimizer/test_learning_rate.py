"""Learning rates as updates use them."""

import torch
from torch import nn

from models import Perceptron, batch
from watching import records, scalar, train, watch


def rates(monitor):
    """{step: {name: rate}}"""
    return {
        record.step: {name: value for name, value in record.scalars.values.items() if name.split("/")[0] == "lr"}
        for record in records(monitor)
    }


def test_the_rate_of_a_step_is_the_one_its_update_used():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
            schedule.step()
    assert scalar(monitor, "lr") == {0: 1.0, 1: 0.5, 2: 0.25, 3: 0.125}


def test_further_groups_are_told_only_where_they_differ_from_the_first():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    groups = [{"params": layer.parameters(), "lr": rate} for layer, rate in zip(model, (0.1, 0.1, 0.01), strict=True)]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        train(model, optimizer, 1)
        optimizer.param_groups[1]["lr"] = 0.2
        train(model, optimizer, 1)
    assert rates(monitor) == {0: {"lr": 0.1, "lr/2": 0.01}, 1: {"lr": 0.1, "lr/1": 0.2, "lr/2": 0.01}}


def test_rates_that_are_tensors_are_those_of_the_update_though_they_change_in_place():
    model = Perceptron(dropout=0.0)
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for _ in range(3):
            train(model, optimizer, 1)
            optimizer.param_groups[0]["lr"].mul_(0.5)
    assert scalar(monitor, "lr") == {0: 0.5, 1: 0.25, 2: 0.125}


def test_groups_of_several_optimizers_are_numbered_through():
    model = Perceptron(dropout=0.0)
    optimizers = [torch.optim.SGD(model.up.parameters(), lr=0.1), torch.optim.AdamW(model.down.parameters(), lr=0.2)]
    with watch(model, optimizers, ["gradient"]) as monitor:
        for step in range(2):
            model(batch(step)).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert rates(monitor) == {0: {"lr": 0.1, "lr/1": 0.2}, 1: {"lr": 0.1, "lr/1": 0.2}}


def test_an_optimizer_without_a_rate_and_updates_by_hand_have_none():
    class Fixed(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self, closure=None):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter -= 0.1 * parameter.grad

    model = Perceptron(dropout=0.0)
    with watch(model, optimizer := Fixed(model.parameters()), ["gradient"]) as monitor:
        train(model, optimizer, 2)
    assert rates(monitor) == {0: {}, 1: {}}
    with watch(model, None, ["gradient"]) as monitor:
        model(batch(0)).square().mean().backward()
        monitor.step()
    assert rates(monitor) == {0: {}}
