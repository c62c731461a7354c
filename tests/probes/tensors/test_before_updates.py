"""weight_before, moment_before and gradient_accumulated against what plain torch code reads by itself."""

import copy

import torch

from models import Partial, Perceptron, batch
from watching import check, rows, watch

QUANTITIES = ["weight_before", "moment_before", "gradient_accumulated", "gradient", "gradient_applied", "weight"]


def found(monitor, step, quantity):
    return {key[3]: row for key, row in rows(monitor, quantity).items() if key[0] == step}


def test_weights_and_moments_are_those_the_update_finds():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES)
    expected = []
    for step in range(3):
        model(batch(step)).square().mean().backward()
        weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        state = {name: copy.deepcopy(optimizer.state.get(tensor, {})) for name, tensor in model.named_parameters()}
        expected.append((weights, state))
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    for step, (weights, state) in enumerate(expected):
        before = found(monitor, step, "weight_before")
        assert before.keys() == weights.keys()
        for name, weight in weights.items():
            check(before[name], weight)
        moments = found(monitor, step, "moment_before")
        assert len(moments) == (0 if step == 0 else 2 * len(weights))
        for target, row in moments.items():
            name, _, key = target.rpartition(":")
            check(row, state[name][key])


def test_accumulated_gradients_are_the_sum_over_micro_steps_before_clipping():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES)
    for micro_step in range(3):
        model(batch(micro_step)).square().mean().backward()
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    optimizer.step()
    monitor.close()
    accumulated = rows(monitor, "gradient_accumulated")
    # One row for all micro-steps, and on one rank the same as `gradient`.
    assert {key[2] for key in accumulated} == {0}
    for name, gradient in gradients.items():
        check(accumulated[0, "gradient_accumulated", 0, name], gradient)
        check(rows(monitor, "gradient")[0, "gradient", 0, name], gradient)


def test_a_parameter_that_got_no_gradient_has_no_row():
    model = Partial()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, QUANTITIES)
    model(batch(0)).square().mean().backward()
    optimizer.step()
    used = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    monitor.close()
    assert used < {name for name, _ in model.named_parameters()}
    assert found(monitor, 0, "gradient_accumulated").keys() == used
