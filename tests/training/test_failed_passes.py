"""A forward, backward or update that raises and is caught: no step, and no row of it in another one."""

import pytest
import torch
from torch import nn

import vario
from watching import check, rows, scalar, watch

QUANTITIES = [
    *("gradient", "gradient_local", "gradient_accumulated", "gradient_applied"),
    *("weight", "activation", "activation_gradient"),
]


class OutOfMemory(RuntimeError):
    """What a loop catches."""


class Fragile(nn.Module):
    """Two layers; raises between them, forward or backward, when told to."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 1)
        self.fails = ""

    def forward(self, x):
        hidden = self.up(x)
        if self.fails == "forward":
            raise OutOfMemory
        if self.fails == "backward":
            hidden.register_hook(self._raise)
        return self.down(hidden)

    def _raise(self, gradient):
        raise OutOfMemory


class FragileAdam(torch.optim.Adam):
    """Raises inside `step` when told to."""

    fails = False

    def step(self, closure=None):
        if self.fails:
            raise OutOfMemory
        return super().step(closure)


def train(fails, at, passes=1, quantities=QUANTITIES, steps=6):
    """Train with some batches failing in their last pass; the Monitor, and the inputs of the steps that happened."""
    torch.manual_seed(0)
    model = Fragile()
    optimizer = FragileAdam(model.parameters())
    monitor = watch(model, optimizer, quantities)
    done = []
    for step in range(steps):
        batches = [torch.randn(4, 4) for _ in range(passes)]
        try:
            for number, one in enumerate(batches):
                model.fails = fails if step in at and number == passes - 1 else ""
                optimizer.fails = model.fails == "update"
                model(one).square().mean().backward()
            optimizer.step()
            done.append(batches)
        except OutOfMemory:
            pass
        optimizer.zero_grad()
    monitor.close()
    return monitor, done


@pytest.mark.parametrize("at", [(0,), (2, 3), (5,), (0, 1, 5)])
@pytest.mark.parametrize("fails", ["forward", "backward", "update"])
def test_what_failed_and_was_caught_leaves_no_row_in_any_step(fails, at):
    monitor, done = train(fails, at)
    recorded = rows(monitor)
    assert {key[0] for key in recorded} == set(range(len(done)))
    assert {key[2] for key in recorded} == {0}
    for step, (one,) in enumerate(done):
        check(recorded[step, "activation", 0, "up:input"], one)
        assert (step, "gradient", 0, "up.weight") in recorded


def test_a_backward_that_fails_in_the_second_micro_step_takes_its_own_rows_along():
    torch.manual_seed(0)
    model = Fragile()
    optimizer = torch.optim.Adam(model.parameters())
    monitor = watch(model, optimizer, QUANTITIES)
    first, failing, second = (torch.randn(4, 4) for _ in range(3))
    model(first).square().mean().backward()
    model.fails = "backward"
    with pytest.raises(OutOfMemory):
        model(failing).square().mean().backward()
    model.fails = ""
    model(second).square().mean().backward()
    gradient = model.up.weight.grad.clone()
    optimizer.step()
    monitor.close()
    recorded = rows(monitor)
    seen = {key[2]: row for key, row in recorded.items() if key[1] == "activation" and key[3] == "up:input"}
    check(seen[0], first)
    check(seen[1], second)
    assert set(seen) == {0, 1}
    check(recorded[0, "gradient", 0, "up.weight"], gradient)


def test_a_batch_tried_again_after_its_backward_failed_is_not_a_repeated_one():
    torch.manual_seed(0)
    model = Fragile()
    optimizer = torch.optim.Adam(model.parameters())
    monitor = watch(model, optimizer, ["gradient"])
    for step in range(4):
        one = torch.randn(16, 4)
        for fails in ("backward", "") if step == 2 else ("",):
            model.fails = fails
            try:
                model(one).square().mean().backward()
                optimizer.step()
            except OutOfMemory:
                pass
            optimizer.zero_grad()
    monitor.close()
    assert scalar(monitor, "batch_repeated") == dict.fromkeys(range(4), 0.0)


def test_the_step_that_ended_the_training_by_raising_is_kept(tmp_path):
    torch.manual_seed(0)
    model = Fragile()
    optimizer = torch.optim.Adam(model.parameters())
    monitor = vario.watch(
        model, optimizer, directory=tmp_path, name="r", quantities=["activation", "gradient"], every=1
    )

    def loop():
        for step in range(3):
            model.fails = "backward" if step == 2 else ""
            model(torch.randn(4, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(OutOfMemory), monitor:
        loop()
    run = vario.open_run(tmp_path / "r")
    assert run.series("up:output", "activation").steps.tolist() == [0, 1, 2]
    assert run.series("up.weight", "gradient").steps.tolist() == [0, 1]
