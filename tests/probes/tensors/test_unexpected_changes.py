"""What changes weights while no optimizer runs: every such change, and nothing else."""

import copy

import pytest
import torch
from torch import nn

from models import Perceptron, batch
from watching import check, rows, watch


class Training:
    """A few steps that something may happen between."""

    def __init__(self, make=lambda p: torch.optim.AdamW(p, lr=0.01), **options):
        torch.manual_seed(0)
        self.model = Perceptron(dropout=0.0)
        self.optimizer = make(self.model.parameters())
        self.monitor = watch(self.model, self.optimizer, ["unexpected_change"], **options)
        self.num_steps = 0

    def run(self, steps=1):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(batch(self.num_steps)).square().mean().backward()
            self.optimizer.step()
            self.num_steps += 1

    def found(self):
        self.monitor.close()
        return {(key[0], key[3]): row for key, row in rows(self.monitor, "unexpected_change").items()}


def test_a_change_from_outside_is_recorded_exactly_at_the_step_it_precedes():
    training = Training()
    training.run(3)
    change = torch.zeros(8, 4)
    change[2, 1], change[5, 3] = 0.5, -1e-7
    with torch.no_grad():
        before = training.model.up.weight.clone()
        training.model.up.weight += change
        change = training.model.up.weight - before
    training.run(2)
    found = training.found()
    assert found.keys() == {(3, "up.weight")}
    check(found[3, "up.weight"], change, eps=0)


def test_a_change_between_backward_and_the_update_is_seen_too():
    training = Training()
    training.run(2)
    training.optimizer.zero_grad()
    training.model(batch(2)).square().mean().backward()
    with torch.no_grad():
        training.model.down.bias.mul_(2)
    training.optimizer.step()
    assert training.found().keys() == {(2, "down.bias")}


def test_other_weights_loaded_on_the_way_show_in_every_parameter():
    training = Training()
    training.run(1)
    earlier = copy.deepcopy(training.model.state_dict())
    training.run(3)
    training.model.load_state_dict(earlier)
    training.run(2)
    assert training.found().keys() == {(4, name) for name in earlier}


def test_weights_exchanged_for_an_evaluation_and_put_back_are_no_change():
    training = Training()
    training.run(2)
    kept = copy.deepcopy(training.model.state_dict())
    with torch.no_grad():
        for parameter in training.model.parameters():
            parameter.zero_()
        training.model(batch(0))
    training.model.load_state_dict(kept)
    training.run(2)
    assert not training.found()


def test_a_value_that_becomes_nan_from_outside_is_a_change_and_one_that_stays_nan_is_none():
    training = Training()
    training.run(2)
    with torch.no_grad():
        training.model.down.bias[1] = torch.nan
    training.run(3)
    assert {key for key in training.found() if key[1] == "down.bias"} == {(2, "down.bias")}


def test_memory_that_was_replaced_gives_no_row_once():
    training = Training()
    training.run(2)
    # As FSDP does when it swaps a shard for the whole.
    training.model.up.weight.data = training.model.up.weight.data.clone() + 1
    with torch.no_grad():
        training.model.up.bias += 1
    training.run(1)
    with torch.no_grad():
        training.model.up.weight += 1
    training.run(2)
    assert training.found().keys() == {(2, "up.bias"), (3, "up.weight")}


def test_optimizers_that_replace_the_memory_they_update_change_nothing_by_stealth():
    class Replacing(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.data = parameter.data - 0.1 * parameter.grad

    training = Training(Replacing)
    training.run(4)
    assert not training.found()


def test_a_parameter_that_changes_its_size_gives_no_row_once():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["unexpected_change"]) as monitor:
        for step in range(6):
            if step == 3:
                model.weight.data = torch.randn(5, 4)
                model.bias.data = torch.randn(5)
            if step == 5:
                model.bias.data += 1
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
    assert {(key[0], key[3]) for key in rows(monitor, "unexpected_change")} == {(5, "bias")}


def test_two_optimizers_of_the_same_parameters_do_not_accuse_each_other():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizers = [torch.optim.AdamW(model.parameters()), torch.optim.SGD(model.up.parameters(), lr=0.1)]
    with watch(model, optimizers, ["unexpected_change", "update"]) as monitor:
        for step in range(6):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizers[step % 2].step()
    assert not rows(monitor, "unexpected_change")


class Lookahead(torch.optim.Optimizer):
    """An optimizer around another one, which pulls weights back to where they were."""

    def __init__(self, inner):
        self.inner = inner
        super().__init__(inner.param_groups[0]["params"], {"lr": 0.1})
        self.slow = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step()
        for parameter, slow in zip(self.param_groups[0]["params"], self.slow, strict=True):
            slow.lerp_(parameter, 0.5)
            parameter.copy_(slow)


def test_an_optimizer_inside_another_does_not_accuse_it():
    training = Training(lambda p: Lookahead(torch.optim.SGD(p, lr=0.1)))
    training.run(4)
    assert not training.found()


def test_updates_by_hand_are_no_stray_changes():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    with watch(model, None, ["unexpected_change", "update"]) as monitor:
        for step in range(3):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            monitor.step()
    assert not rows(monitor)


@pytest.mark.parametrize("late", [False, True])
def test_seen_rarely_it_covers_the_time_after_each_step_that_is_watched(late):
    training = Training(every={"unexpected_change": 3})
    training.run(4 if late is False else 5)
    with torch.no_grad():
        training.model.up.weight += 1
    training.run(3)
    # Step 3 is watched, so what happens between it and step 4 is seen, and what comes later is not.
    assert training.found().keys() == (set() if late else {(4, "up.weight")})


def test_frozen_parameters_that_the_optimizer_holds_are_watched_over():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    model.up.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    with watch(model, optimizer, ["unexpected_change", "update"]) as monitor:
        for step in range(3):
            if step == 2:
                model.up.weight[0, 0] += 1
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
    assert {(key[0], key[3]) for key in rows(monitor, "unexpected_change")} == {(2, "up.weight")}
    assert not [key for key in rows(monitor, "update") if key[3].startswith("up.weight")]
