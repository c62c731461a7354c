"""A part that fails is told once, switched off and listed; training goes on with the same losses; strict raises."""

import logging

import pytest
import torch
from torch import nn

import vario
from models import Perceptron
from vario.core.registry import Found
from vario.probes import PROBES
from vario.sinks import SINKS
from watching import EVERYTHING, made, records, steps_of, train, watch


@pytest.fixture
def registered(monkeypatch):
    """Add a part as another package's entry point would."""

    def add(registry, name, part):
        monkeypatch.setitem(registry._load(), name, Found(name, part, "tests"))

    return add


class Explosive(Exception):
    pass


class FailingProbe:
    """Fails at its second step."""

    quantity = "update"
    every = 1

    def attach(self, backend, recorder):
        observer = recorder.observer(self.quantity)
        updates = []

        def update_ended(optimizer):
            updates.append(optimizer)
            if len(updates) > 1:
                raise Explosive("probe")
            observer.observe_all(*backend.weights(optimizer))

        backend.on_update_ended(recorder.guarded(self.quantity, update_ended))


class FailingSink:
    name = "failing"
    first_step = 0
    fails_at = 1

    def open(self, header):
        self.noted = []

    def write(self, record):
        if record.step >= self.fails_at:
            raise Explosive("sink")

    def note(self, parts_off, num_refused):
        raise Explosive("note")

    def close(self, state, error):
        raise Explosive("close")


class Unreadable(dict):
    """An output that cannot be looked at: items() raises."""

    def __init__(self, score):
        super().__init__(score=score)
        self.score = score

    def items(self):
        raise Explosive("output")


class Obscure(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Perceptron(dropout=0.0)

    def forward(self, x):
        return Unreadable(self.inner(x))


def made_obscure():
    torch.manual_seed(0)
    model = Obscure()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def expected_losses(make, steps):
    return train(*make(), steps)


def test_a_probe_that_fails_is_switched_off_and_training_goes_on(registered, tmp_path, caplog):
    registered(PROBES, "update", FailingProbe)
    model, optimizer = made()
    monitor = watch(
        model,
        optimizer,
        ["update", "gradient"],
        strict=False,
        sinks=["store", "in_memory"],
        directory=str(tmp_path),
        name="one",
    )
    losses = train(model, optimizer, 4)
    monitor.close()
    assert losses == expected_losses(made, 4)
    assert steps_of(monitor) == {"update": [0], "gradient": [0, 1, 2, 3]}
    assert [record.getMessage() for record in caplog.records] == [
        "rank 0, step 1: 'update' failed and is switched off; training continues. Explosive: probe"
    ]
    run = vario.open_run(tmp_path / "one")
    assert [(part.rank, part.part, part.step, part.error) for part in run.parts_off] == [
        (0, "update", 1, "Explosive: probe")
    ]
    assert run.state == "finished"


def test_a_probe_that_fails_raises_when_strict(registered):
    registered(PROBES, "update", FailingProbe)
    model, optimizer = made()
    monitor = watch(model, optimizer, ["update"])
    with pytest.raises(Explosive, match="probe"):
        train(model, optimizer, 4)
    monitor.close()


@pytest.mark.parametrize("quantities", [["activation"], ["activation_gradient"], ["gradient"], EVERYTHING])
def test_an_output_that_cannot_be_looked_at_does_not_stop_training(quantities, caplog):
    model, optimizer = made_obscure()
    monitor = watch(model, optimizer, quantities, strict=False)
    losses = train(model, optimizer, 3)
    monitor.close()
    assert losses == expected_losses(made_obscure, 3)
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == len(set(warnings)) <= 3
    assert all("rank 0, step 0" in text and "Explosive: output" in text for text in warnings)
    if "gradient" in quantities:
        assert steps_of(monitor)["gradient"] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore:module forward hook with")
def test_an_output_that_cannot_be_looked_at_raises_when_strict():
    model, optimizer = made_obscure()
    monitor = watch(model, optimizer, ["activation"])
    with pytest.raises(Explosive, match="output"):
        train(model, optimizer, 1)
    monitor.close()


def test_a_sink_that_fails_is_switched_off_and_the_others_get_everything(registered, caplog):
    registered(SINKS, "failing", FailingSink)
    model, optimizer = made()
    monitor = watch(model, optimizer, ["gradient"], strict=False, sinks=["failing", "in_memory"])
    losses = train(model, optimizer, 40)
    monitor.close()
    assert losses == expected_losses(made, 40)
    assert steps_of(monitor) == {"gradient": list(range(40))}
    assert len(caplog.records) == 1
    assert "'sink failing' failed and is switched off; training continues. Explosive: sink" in caplog.text
    assert [part["part"] for part in monitor.sinks["in_memory"].parts_off] == ["sink failing"]


def test_a_sink_that_fails_to_note_a_failure_is_switched_off_too(registered, caplog):
    registered(SINKS, "failing", type("Quiet", (FailingSink,), {"fails_at": 10**9}))
    model, optimizer = made()
    monitor = watch(model, optimizer, ["gradient"], strict=False, sinks=["failing", "in_memory"])
    monitor.log(loss="not a number")
    losses = train(model, optimizer, 3)
    monitor.close()
    assert losses == expected_losses(made, 3)
    assert {part["part"] for part in monitor.sinks["in_memory"].parts_off} == {"log loss", "sink failing"}


def test_a_sink_that_fails_raises_in_the_training_thread_when_strict(registered):
    registered(SINKS, "failing", FailingSink)
    model, optimizer = made()
    monitor = watch(model, optimizer, ["gradient"], sinks=["failing"])

    def trained():
        train(model, optimizer, 40)
        monitor.close()

    with pytest.raises(Explosive, match="sink"):
        trained()
    monitor.close()


def trained_until(error, **options):
    """Train two steps in a `with` block that the error leaves."""
    model, optimizer = made()
    with watch(model, optimizer, **options) as monitor:
        trained.append(monitor)
        train(model, optimizer, 2)
        raise error


trained = []


def test_an_exception_in_the_loop_is_kept_and_passed_on(tmp_path):
    with pytest.raises(ZeroDivisionError):
        trained_until(ZeroDivisionError("by the user"), sinks=["store"], directory=str(tmp_path), name="one")
    run = vario.open_run(tmp_path / "one")
    assert run.state == "crashed"
    assert run.error == "ZeroDivisionError: by the user"
    assert run.steps().tolist() == [0, 1]


@pytest.mark.parametrize(("code", "state"), [(0, "finished"), (None, "finished"), (3, "crashed")])
def test_leaving_by_sys_exit_is_judged_by_its_code(code, state):
    with pytest.raises(SystemExit):
        trained_until(SystemExit(code))
    assert trained[-1].sinks["in_memory"].state == state


def test_an_unwritable_folder_does_not_stop_training(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    model, optimizer = made()
    monitor = watch(
        model, optimizer, strict=False, sinks=["store", "in_memory"], directory=str(tmp_path / "file" / "runs")
    )
    losses = train(model, optimizer, 20)
    monitor.close()
    assert losses == expected_losses(made, 20)
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 <= len(warnings) <= 2  # that it cannot record, and at the end how much is lost
    assert "Training continues" in warnings[0].getMessage()
    assert len(records(monitor)) == 20


class OddGroups(torch.optim.SGD):
    """Leaves a group without parameters behind after a while, as optimizers that merge their groups may."""

    num_steps = 0

    def step(self, closure=None):
        super().step(closure)
        self.num_steps += 1
        if self.num_steps == 2:
            self.param_groups = OddList(self.param_groups)


class OddList(list):
    def __iter__(self):
        for group in super().__iter__():
            yield {**group, "params": None} if is_asked_by_vario() else group


def is_asked_by_vario():
    import sys

    return "vario" in sys._getframe(2).f_globals["__name__"]


def test_a_failure_in_following_the_loop_itself_does_not_reach_training(caplog):
    losses = []
    for is_watched in (False, True):
        torch.manual_seed(0)
        model = Perceptron()
        optimizer = OddGroups(model.parameters(), lr=0.1)
        monitor = vario.watch(model, optimizer, every=1, sinks=["in_memory"]) if is_watched else None
        losses.append([])
        for step in range(5):
            optimizer.zero_grad()
            loss = model(torch.full((2, 4), float(step))).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
        if monitor is not None:
            monitor.close()
            assert "training loop" in monitor.off
            assert len(monitor.sinks["in_memory"].records) >= 2
    assert losses[0] == losses[1]
    assert sum("'training loop' failed" in line for line in caplog.messages) == 1
