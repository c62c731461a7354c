"""What forward passes show of a rank: its own loss, and how long they and the time before them take."""

import dataclasses

import pytest
import torch
from torch import nn

from models import Perceptron, batch
from watching import records, scalar, train, watch


class Losing(nn.Module):
    """Returns its loss in one of the ways models do."""

    def __init__(self, how):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.how = how

    def forward(self, x):
        output = self.linear(x)
        return self.how(output.square().mean(), output)


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor


WAYS = {
    "attribute": (lambda loss, output: Output(loss, output), lambda found: found.loss),
    "key": (lambda loss, output: {"logits": output, "loss": loss}, lambda found: found["loss"]),
    "itself": (lambda loss, output: loss, lambda found: found),
    "of one element": (lambda loss, output: loss.reshape(1), lambda found: found.sum()),
    "in a pair": (lambda loss, output: (output, loss), lambda found: found[1]),
    "first in a pair": (lambda loss, output: (loss, output), lambda found: found[0]),
    "in half": (lambda loss, output: {"loss": loss.bfloat16()}, lambda found: found["loss"]),
}


@pytest.mark.parametrize(("how", "loss_of"), WAYS.values(), ids=WAYS.keys())
def test_the_loss_a_model_returns_is_averaged_over_the_passes_of_a_step(how, loss_of):
    model = Losing(how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    expected = {}
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(3):
            losses = []
            for micro_step in range(2):
                loss = loss_of(model(batch(10 * step + micro_step)))
                losses.append(loss.item())
                loss /= 2  # in place, as some loops do
                loss.backward()
            with torch.no_grad():
                model(batch(99))  # not a pass that trains
            optimizer.step()
            optimizer.zero_grad()
            expected[step] = sum(losses) / 2
    assert scalar(monitor, "loss_local") == pytest.approx(expected, rel=1e-6)


NO_LOSS = {
    "several numbers": lambda loss, output: output,
    "a loss for each row": lambda loss, output: {"loss": output.mean(dim=1)},
    "a loss that is no tensor": lambda loss, output: {"loss": None, "logits": output},
}


@pytest.mark.parametrize("how", NO_LOSS.values(), ids=NO_LOSS.keys())
def test_where_a_model_returns_no_loss_it_is_what_backward_was_called_on(how):
    model = Losing(how)
    with watch(model, torch.optim.SGD(model.parameters(), lr=0.1), ["gradient"]) as monitor:
        found = model(batch(0))
        found = found.get("logits", found["loss"]) if isinstance(found, dict) else found
        loss = found.mean()
        loss.backward()
        monitor.step()
    assert scalar(monitor, "loss_local") == {}
    assert scalar(monitor, "loss_backward") == {0: pytest.approx(loss.item())}


@pytest.mark.filterwarnings("ignore")  # what inductor and dynamo warn of is theirs
@pytest.mark.parametrize("way", ["in place", "around", "before"])
def test_a_compiled_model_shows_loss_batch_and_times_as_eager_code_does(way):
    torch._dynamo.reset()
    found = {}
    for kind in ("eager", way):
        torch.manual_seed(0)
        model = called = Losing(WAYS["key"][0])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "in place":
            model.compile(backend="aot_eager", fullgraph=True)
        if kind == "before":
            called = torch.compile(model, backend="aot_eager", fullgraph=True)
        with watch(called, optimizer, ["gradient"]) as monitor:
            if kind == "around":
                called = torch.compile(model, backend="aot_eager", fullgraph=True)
            for step in range(3):
                called(batch(step % 2))["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
        names = ("loss_local", "batch_repeated", "batch_checksum", "batch_distance")
        found[kind] = [scalar(monitor, name) for name in names]
        assert sorted(scalar(monitor, "forward_seconds")) == [0, 1, 2]
        assert sorted(scalar(monitor, "wait_seconds")) == [1, 2]
    assert found[way] == found["eager"]
    torch._dynamo.reset()


def test_the_time_in_passes_and_before_them_are_parts_of_the_step():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        train(model, optimizer, 4)
    forward, wait = scalar(monitor, "forward_seconds"), scalar(monitor, "wait_seconds")
    assert sorted(forward) == [0, 1, 2, 3]
    assert sorted(wait) == [1, 2, 3]  # nothing was updated before the first step
    for record in records(monitor)[1:]:
        values = record.scalars.values
        assert 0 < values["forward_seconds"] + values["wait_seconds"] < values["step_seconds"]


def test_passes_add_up_and_what_comes_between_them_does_not_count(monkeypatch):
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr("vario.backends.host_clock.time.perf_counter", lambda: float(next(now)))
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(3):
            for micro_step in range(3):
                model(batch(3 * step + micro_step)).square().mean().backward()
                with torch.no_grad():
                    model(batch(99))
            optimizer.step()
    # The clock is read at both ends of each part of a step, and each time ten seconds have passed. The monitor's own
    # milliseconds, by the real clock, are taken off.
    assert scalar(monitor, "forward_seconds") == pytest.approx({0: 30.0, 1: 30.0, 2: 30.0}, abs=0.5)
    assert scalar(monitor, "wait_seconds") == pytest.approx({1: 10.0, 2: 10.0}, abs=0.5)
    # Which gradient is the last of a backward is known from the backward before.
    assert scalar(monitor, "backward_seconds") == pytest.approx({0: 20.0, 1: 30.0, 2: 30.0}, abs=0.5)
    assert scalar(monitor, "update_seconds") == pytest.approx({0: 10.0, 1: 10.0, 2: 10.0}, abs=0.5)


def test_what_ranks_do_together_after_the_last_gradient_is_not_in_the_time_of_backward(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("vario.backends.host_clock.time.perf_counter", lambda: clock[0])

    def takes(seconds):
        clock[0] += seconds

    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(4):
            output = model(batch(step))
            output.register_hook(lambda _: takes(3.0))
            # As DDP does: it waits for the other ranks when the engine has nothing left to compute.
            first = next(model.parameters())
            queue = torch.autograd.Variable._execution_engine.queue_callback
            handle = first.register_hook(lambda _, queue=queue: queue(lambda: takes(100.0)))
            output.square().mean().backward()
            handle.remove()
            takes(7.0)
            optimizer.step()
            takes(11.0)
    assert scalar(monitor, "backward_seconds") == pytest.approx({1: 3.0, 2: 3.0, 3: 3.0}, abs=0.5)
    assert scalar(monitor, "wait_seconds") == pytest.approx({1: 11.0, 2: 11.0, 3: 11.0}, abs=0.5)


def test_a_pass_that_raised_has_no_loss_and_no_time():
    class Failing(Losing):
        fails = True

        def forward(self, x):
            if self.fails:
                raise RuntimeError("out of memory")
            return super().forward(x)

    model = Failing(WAYS["key"][0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["gradient"]) as monitor:
        with pytest.raises(RuntimeError):
            model(batch(0))
        model.fails = False
        loss = model(batch(0))["loss"]
        loss.backward()
        optimizer.step()
    assert scalar(monitor, "loss_local") == {0: pytest.approx(loss.item())}
    # The same rows, but the first time they came to nothing.
    assert scalar(monitor, "batch_repeated") == {0: 0.0}
