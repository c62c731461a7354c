"""What comes back through one module: beside the gradient of a copy of the input that only this module uses."""

import pytest
import torch
from torch import nn

from vario.backends.torch.modules.input_gradients import CallInputs, Graph


class UsesItsInputTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(5, 5)

    def forward(self, x):
        return self.linear(x).tanh() * x


class Attention(nn.Module):
    def forward(self, query, key, *, bias):
        return (query @ key.T + bias).softmax(-1) @ key


def gradients_through(module, args, kwargs, loss_of):
    """What it sees of a call, by path, and whether it said that something failed."""
    found, failures = {}, []
    call_inputs = CallInputs(Graph(), args, kwargs)
    output = module(*args, **kwargs)
    call_inputs.follow(
        output, lambda path, _: lambda gradient: found.setdefault(path, []).append(gradient.clone()), failures.append
    )
    loss_of(output).backward(retain_graph=True)
    assert not failures
    return found


def gradients_of_copies(module, args, kwargs, loss_of):
    """The oracle: every input goes in as a copy."""
    copies = {id(value): value.clone() for value in (*args, *kwargs.values())}
    for copy in copies.values():
        copy.retain_grad()
    output = module(*(copies[id(value)] for value in args), **{key: copies[id(kwargs[key])] for key in kwargs})
    loss_of(output).backward()
    return [copies[id(value)].grad for value in (*args, *kwargs.values())]


def test_other_users_of_the_input_do_not_count():
    x = torch.randn(3, 5, requires_grad=True) * 1
    module = UsesItsInputTwice()
    found = gradients_through(module, (x,), {}, lambda output: (output + x.exp()).square().sum())
    (expected,) = gradients_of_copies(module, (x,), {}, lambda output: (output + x.exp()).square().sum())
    assert list(found) == ["input"]
    (gradient,) = found["input"]
    torch.testing.assert_close(gradient, expected)


def test_each_input_has_its_own_and_a_tensor_given_twice_has_both():
    hidden, bias = torch.randn(3, 5, requires_grad=True) * 1, torch.randn(3, requires_grad=True)
    found = gradients_through(Attention(), (hidden, hidden), {"bias": bias}, lambda output: output.square().sum())
    expected = gradients_of_copies(Attention(), (hidden, hidden), {"bias": bias}, lambda output: output.square().sum())
    assert set(found) == {"input.0", "input.1", "input.bias"}
    for path, wanted in zip(("input.0", "input.1", "input.bias"), expected, strict=True):
        (gradient,) = found[path]
        torch.testing.assert_close(gradient, wanted)


def test_a_use_that_backward_does_not_reach_is_not_waited_for():
    class TwoOutputs(nn.Module):
        def forward(self, x):
            return x * 2, x * 3

    x = torch.ones(3, requires_grad=True) * 1
    found = gradients_through(TwoOutputs(), (x,), {}, lambda output: output[1].sum())
    assert [gradient.tolist() for gradient in found["input"]] == [[3.0, 3.0, 3.0]]


def test_every_backward_through_the_same_graph_is_seen():
    x = torch.ones(3, 5, requires_grad=True) * 1
    found = []
    call_inputs = CallInputs(Graph(), (x,), {})
    output = UsesItsInputTwice()(x)
    call_inputs.follow(output, lambda path, _: found.append, pytest.fail)
    output.sum().backward(retain_graph=True)
    (2 * output.sum()).backward()
    torch.testing.assert_close(found[1], 2 * found[0])


def test_an_input_that_is_returned_as_it_came_has_the_gradient_of_the_output():
    x = torch.ones(3, requires_grad=True) * 1
    found = gradients_through(nn.Identity(), (x,), {}, lambda output: (2 * output).sum())
    assert [gradient.tolist() for gradient in found["input"]] == [[2.0, 2.0, 2.0]]


def test_what_cannot_be_added_up_is_told_and_backward_goes_on():
    class Outputs(dict):
        def items(self):
            raise OSError("not now")

    x = torch.ones(3, requires_grad=True) * 1
    failures = []
    CallInputs(Graph(), (x,), {}).follow(Outputs(), lambda path, _: pytest.fail, failures.append)
    assert [str(error) for error in failures] == ["not now"]
