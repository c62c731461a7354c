"""Where one step ends and the next begins, told from real training loops."""

import contextlib

import pytest
import torch
from torch import nn

from models import Perceptron, batch
from vario.core.clock import Clock
from watching import GRADIENTS, check, records, rows, scalar, watch


class Pair:
    """A generator, a discriminator, and a diary of every update: which optimizer, with which gradients."""

    def __init__(self):
        torch.manual_seed(0)
        self.models = {"g": nn.Linear(4, 4), "d": nn.Linear(4, 1)}
        self.optimizers = {name: torch.optim.Adam(model.parameters()) for name, model in self.models.items()}
        self.diary = {}

    def update(self, which):
        self.optimizers[which].zero_grad()
        fake = self.models["g"](batch(len(self.diary)))
        if which == "d":
            fake = fake.detach()
        self.models["d"](fake).square().mean().backward()
        grads = {f"{which}.{n}": p.grad.clone() for n, p in self.models[which].named_parameters()}
        self.optimizers[which].step()
        weights = {f"{which}.{n}": p.detach().clone() for n, p in self.models[which].named_parameters()}
        for name in grads:
            self.diary.setdefault(name, []).append((grads[name], weights[name]))


@pytest.mark.parametrize("order", ["gd", "dg", "dddg", "gddd", "gggd"])
def test_every_update_of_two_optimizers_is_recorded_once_with_its_own_gradients(order):
    pair = Pair()
    monitor = watch(pair.models, list(pair.optimizers.values()), [*GRADIENTS, "weight"])
    for _ in range(4):
        for which in order:
            pair.update(which)
    monitor.close()
    recorded = rows(monitor)
    for name, updates in pair.diary.items():
        applied = [row for key, row in recorded.items() if key[1] == "gradient_applied" and key[3] == name]
        weights = [row for key, row in recorded.items() if key[1] == "weight" and key[3] == name]
        assert len(applied) == len(weights) == len(updates)
        for (gradient, weight), applied_row, weight_row in zip(updates, applied, weights, strict=True):
            check(applied_row, gradient)
            check(weight_row, weight)
        at_steps = [key[0] for key in recorded if key[1] == "gradient_applied" and key[3] == name]
        for step, (gradient, _) in zip(at_steps, updates, strict=True):
            check(recorded[step, "gradient", 0, name], gradient)


@pytest.mark.parametrize("order", ["gd", "dg"])
def test_two_optimizers_that_take_turns_share_a_step_once_their_rhythm_is_known(order):
    pair = Pair()
    monitor = watch(pair.models, list(pair.optimizers.values()), ["weight"])
    for _ in range(5):
        for which in order:
            pair.update(which)
    monitor.close()
    held = [{key[3][0] for key in rows(monitor) if key[0] == record.step} for record in records(monitor)]
    assert {"g", "d"} in held
    assert len(held) > 4
    assert held[2:-1] == [{"g", "d"}] * len(held[2:-1])


def test_a_loss_logged_after_the_update_belongs_to_its_step():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["gradient"])
    for step in range(4):
        loss = model(batch(step)).mean()
        assert monitor.step_number == step
        loss.backward()
        monitor.log(before=step)
        optimizer.step()
        optimizer.zero_grad()
        monitor.log(after=step)
        with torch.no_grad():
            model(batch(99))
        monitor.log(evaluated=step)
        assert monitor.step_number == step
    monitor.close()
    for name in ("before", "after", "evaluated"):
        assert scalar(monitor, name) == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}


def test_micro_steps_are_counted_within_the_step():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["activation"])
    seen = []
    for _ in range(2):
        for _ in range(3):
            output = model(batch(0))
            seen.append((monitor.step_number, monitor.micro_step))
            output.mean().backward()
        optimizer.step()
    monitor.close()
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert {key[2] for key in rows(monitor)} == {0, 1, 2}


def test_a_loop_without_a_torch_optimizer_says_itself_where_steps_end():
    model = Perceptron()
    monitor = watch(model, None, ["gradient", "gradient_local"])
    expected = []
    for step in range(3):
        for micro_step in range(2):
            model(batch(2 * step + micro_step)).square().mean().backward()
        expected.append(model.up.weight.grad.clone())
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        monitor.log(loss=step)
        monitor.step()
    monitor.close()
    recorded = rows(monitor)
    assert scalar(monitor, "loss") == {0: 0.0, 1: 1.0, 2: 2.0}
    for step in range(3):
        check(recorded[step, "gradient", 0, "up.weight"], expected[step])
        assert {key[2] for key in recorded if key[:2] == (step, "gradient_local")} == {0, 1}
    assert len(records(monitor)) == 3


def test_saying_it_beside_a_torch_optimizer_does_not_count_twice():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["weight"])
    for step in range(3):
        for _ in range(2):  # two updates that the loop calls one step
            optimizer.zero_grad()
            model(batch(step)).mean().backward()
            optimizer.step()
        monitor.step()
    monitor.close()
    assert [record.step for record in records(monitor)][-1] in (2, 3)
    assert monitor.step_number in (3, 4)
    check(rows(monitor)[records(monitor)[-1].step, "weight", 0, "up.weight"], model.up.weight)


def test_a_step_in_which_nothing_was_updated_is_not_made_up():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["gradient"])
    model(batch(0))
    model(batch(1)).mean().backward()
    optimizer.step()
    model(batch(2))  # a forward whose loss is thrown away
    model(batch(3)).mean().backward()
    optimizer.step()
    monitor.close()
    assert [record.step for record in records(monitor)] == [0, 1]


def test_an_update_that_raises_does_not_stop_the_clock():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["weight"])

    def fails():
        raise RuntimeError("out of memory")

    for step in range(4):
        optimizer.zero_grad()
        model(batch(step)).mean().backward()
        if step == 1:
            with contextlib.suppress(RuntimeError):
                optimizer.step(fails)
        else:
            optimizer.step()
            monitor.log(loss=step)
    monitor.close()
    assert [round(value) for value in scalar(monitor, "loss").values()] == [0, 2, 3]


def test_the_clock_waits_for_all_that_took_part_in_the_step_before():
    clock = Clock(step=5)
    for step, parameters in ((5, [1]), (6, [1, 2])):
        assert clock.step == step
        clock.gradients_came([1])
        for parameter in parameters:
            assert not clock.update_began([parameter])
            clock.update_ended([parameter])
        assert clock.has_updated(1)
        assert clock.forward_began()
        clock.next_step()
    clock.update_began([1])
    clock.update_ended([1])
    assert not clock.forward_began()
    clock.update_began([2])
    clock.update_ended([2])
    assert clock.forward_began()


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
@pytest.mark.parametrize("order", ["dg", "gd"])
def test_a_gan_has_one_step_per_round_and_only_gradients_that_were_used(order, given):
    torch.manual_seed(0)
    models = {"g": nn.Linear(2, 2), "d": nn.Linear(2, 1)}
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}
    monitor = watch(models, list(optimizers.values()) if given else None, ["gradient"])
    used = {"g": [], "d": []}
    for round_number in range(4):
        noise = torch.randn(3, 2)
        for name in order:
            optimizers[name].zero_grad()
            fake = models["g"](noise)
            # The generator's loss leaves a gradient in the discriminator that nobody uses.
            loss = models["d"](fake if name == "g" else fake.detach()).square().mean()
            loss.backward()
            used[name].append(models[name].weight.grad.norm().item())
            optimizers[name].step()
        monitor.log(round=round_number)
    monitor.close()
    assert scalar(monitor, "round") == {number: float(number) for number in range(4)}
    found = rows(monitor, "gradient")
    for name in "gd":
        norms = [found[step, "gradient", 0, f"{name}.weight"][2] ** 0.5 for step in range(4)]
        assert norms == pytest.approx(used[name], rel=1e-5)


def test_a_replaced_optimizer_is_followed():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["gradient", "moment"])
    for step in range(4):
        if step == 2:
            optimizer = torch.optim.Adam(model.parameters())
        optimizer.zero_grad()
        model(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    monitor.close()
    assert sorted({key[0] for key in rows(monitor, "gradient")}) == [0, 1, 2, 3]
    assert sorted({key[0] for key in rows(monitor, "moment")}) == [2, 3]


def test_weights_are_recorded_where_the_loop_updates_them_by_hand():
    model = nn.Linear(4, 1)
    monitor = watch(model, None, ["weight", "gradient"])
    weights = []
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        weights.append(model.weight.norm().item())
        monitor.step()
    monitor.close()
    found = rows(monitor, "weight")
    assert [found[step, "weight", 0, "weight"][2] ** 0.5 for step in range(3)] == pytest.approx(weights)


def test_an_evaluation_that_forgets_no_grad_is_no_training():
    model = nn.Sequential(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["activation"])
    for step in range(3):
        model.train()
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        model.eval()
        model(torch.randn(100, 4))
        monitor.log(accuracy=step)
    monitor.close()
    assert {row[0] for key, row in rows(monitor).items() if key[3] == "root:output"} == {2.0}
    assert scalar(monitor, "accuracy") == {0: 0.0, 1: 1.0, 2: 2.0}
