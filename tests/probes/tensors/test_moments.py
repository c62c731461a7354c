"""Optimizer state by name, and weights, against what lies in the optimizer and the model after each update."""

import pytest
import torch
from torch import nn

from models import Partial, Perceptron, batch
from vario.core.records import COUNT
from watching import check, rows, watch


def loss_of(model, seed):
    return model(batch(seed)).square().mean()


def trained(model, optimizer, quantities, steps=3, **options):
    """Train a few steps and keep, by hand, weights and state after each."""
    monitor = watch(model, optimizer, quantities, **options)
    weights, states = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
        weights.append({name: p.detach().clone() for name, p in model.named_parameters()})
        states.append(
            {
                f"{name}:{key}": value.clone()
                for name, p in model.named_parameters()
                for key, value in optimizer.state.get(p, {}).items()
                if isinstance(value, torch.Tensor) and key != "step"
            }
        )
    monitor.close()
    return monitor, weights, states


OPTIMIZERS = {
    "adamw": (lambda p: torch.optim.AdamW(p, lr=0.01), {"exp_avg", "exp_avg_sq"}),
    "amsgrad": (lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True), {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}),
    "fused": (lambda p: torch.optim.AdamW(p, lr=0.01, fused=True), {"exp_avg", "exp_avg_sq"}),
    "foreach": (lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True), {"exp_avg", "exp_avg_sq"}),
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), {"momentum_buffer"}),
    "sgd": (lambda p: torch.optim.SGD(p, lr=0.01), set()),
    "adagrad": (lambda p: torch.optim.Adagrad(p, lr=0.01), {"sum"}),
    "rmsprop": (
        lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.1),
        {"square_avg", "grad_avg", "momentum_buffer"},
    ),
    "adafactor": (lambda p: torch.optim.Adafactor(p, lr=0.01), {"row_var", "col_var", "variance"}),
    "adadelta": (lambda p: torch.optim.Adadelta(p), {"square_avg", "acc_delta"}),
    "nadam": (lambda p: torch.optim.NAdam(p), {"exp_avg", "exp_avg_sq", "mu_product"}),
}


@pytest.mark.parametrize(("make", "keys"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_every_tensor_of_the_state_is_recorded_under_its_own_name(make, keys):
    model = Perceptron(dropout=0.0)
    monitor, _, states = trained(model, make(model.parameters()), ["moment"])
    recorded = rows(monitor, "moment")
    assert {key[3].split(":")[1] for key in recorded} == keys
    for step, state in enumerate(states):
        assert {key[3] for key in recorded if key[0] == step} == state.keys()
        for name, tensor in state.items():
            check(recorded[step, "moment", 0, name], tensor)


def test_the_state_of_lbfgs_is_recorded_where_it_lies():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    monitor = watch(model, optimizer, ["moment"])

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    optimizer.step(closure)
    state = optimizer.state[model.weight]
    monitor.close()
    recorded = rows(monitor, "moment")
    check(recorded[0, "moment", 0, "weight:d"], state["d"])
    check(recorded[0, "moment", 0, "weight:old_dirs.0"], state["old_dirs"][0])


def test_weights_are_those_after_the_update_and_frozen_ones_come_once():
    model = Partial()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    monitor, weights, _ = trained(model, optimizer, ["weight"])
    recorded = rows(monitor, "weight")
    for step in range(3):
        for name in ("used.weight", "used.bias", "spare.weight", "spare.bias"):
            check(recorded[step, "weight", 0, name], weights[step][name])
    assert {key[0] for key in recorded if key[3] == "frozen.weight"} == {0}
    check(recorded[0, "weight", 0, "frozen.weight"], model.frozen.weight)


def test_frozen_weights_that_the_optimizer_holds_are_recorded_too():
    model = Partial()
    monitor, weights, _ = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), ["weight"])
    recorded = rows(monitor, "weight")
    check(recorded[0, "weight", 0, "frozen.weight"], weights[0]["frozen.weight"])
    assert recorded[0, "weight", 0, "frozen.weight"][COUNT] == 16


def test_weights_move_as_one_optimizer_after_the_other_updates_them():
    model = Perceptron(dropout=0.0)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.up, model.down)]
    monitor = watch(model, optimizers, ["weight", "gradient"])
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(model, step).backward()
        for optimizer in optimizers:
            optimizer.step()
    monitor.close()
    recorded = rows(monitor)
    assert {key[0] for key in recorded} == {0, 1, 2}
    assert len(recorded) == 3 * 4 * 2
    for name, parameter in model.named_parameters():
        check(recorded[2, "weight", 0, name], parameter)


def test_an_optimizer_nobody_named_is_found_and_a_strangers_is_not():
    model, stranger = Perceptron(dropout=0.0), nn.Linear(4, 1)
    others = torch.optim.Adam(stranger.parameters())
    monitor = watch(model, None, ["moment", "weight"])
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(2):
        loss_of(stranger, step).backward()
        others.step()
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    monitor.close()
    recorded = rows(monitor)
    assert {key[0] for key in recorded} == {0, 1}
    assert len(recorded) == 2 * (8 + 4)
    for name, parameter in model.named_parameters():
        check(recorded[1, "moment", 0, f"{name}:exp_avg_sq"], optimizer.state[parameter]["exp_avg_sq"])


def test_looking_at_the_state_leaves_no_entry_behind():
    model = Partial()
    optimizer = torch.optim.Adam(model.parameters())
    trained(model, optimizer, ["moment"])
    assert set(optimizer.state) == set(model.used.parameters())
