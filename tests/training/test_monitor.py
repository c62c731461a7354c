"""The Monitor: its schedule, plain numbers and what it refuses."""

import json
import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import vario
from models import Perceptron, batch
from thorough import thorough
from vario.core.errors import ConfigError, ModelError, RunTaken
from vario.core.records import SUM_SQUARES
from watching import EVERYTHING, made, records, rows, scalar, steps_of, train, watch

# Schedule


def at_steps(*steps):
    return {quantity: list(steps) for quantity in EVERYTHING}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 3}, at_steps(0, 3, 6)),
        ({"every": 2, "start": 3}, at_steps(3, 5, 7)),
        ({"every": 2, "start": 1, "count": 2}, at_steps(1, 3)),
        ({"count": 0}, {}),
        (
            {"every": {"gradient": 4, "activation": 3}, "quantities": ["gradient", "activation", "weight"]},
            {"gradient": [0, 4], "activation": [0, 3, 6], "weight": [0]},
        ),
    ],
)
def test_each_quantity_keeps_to_its_schedule(options, expected):
    model, optimizer = made()
    monitor = watch(model, optimizer, **options)
    train(model, optimizer, 8, monitor)
    monitor.close()
    assert steps_of(monitor) == expected


def test_steps_outside_the_schedule_leave_their_plain_numbers():
    model, optimizer = made()
    monitor = watch(model, optimizer, every=5)
    losses = train(model, optimizer, 6, monitor)
    monitor.close()
    assert scalar(monitor, "loss") == dict(enumerate(losses))
    assert sorted(scalar(monitor, "step_seconds")) == list(range(6))
    assert all(value > 10**6 for value in scalar(monitor, "process_memory_bytes").values())
    assert [len(record.frames) > 0 for record in records(monitor)] == [True, False, False, False, False, True]


# Plain numbers


def test_numbers_of_every_kind_are_logged():
    import numpy as np

    model, optimizer = made()
    with watch(model, optimizer) as monitor:
        train(model, optimizer, 1)
        monitor.log(a=1, b=2.5, c=torch.tensor(3.0, requires_grad=True), d=torch.tensor([4]), e=np.float32(5), f=True)
        monitor.log(nan=float("nan"), inf=torch.tensor(float("inf")))
    values = records(monitor)[0].scalars.values
    assert {name: values[name] for name in "abcdef"} == {"a": 1, "b": 2.5, "c": 3, "d": 4, "e": 5, "f": 1}
    assert math.isnan(values["nan"])
    assert values["inf"] == math.inf


@pytest.mark.parametrize("wrong", ["text", None, [1.0], torch.ones(2), torch.ones(2, device="meta"), 1j])
def test_what_is_no_number_raises_when_strict_and_is_told_once_otherwise(wrong, caplog):
    model, optimizer = made()
    with watch(model, optimizer) as monitor, pytest.raises((TypeError, ValueError, RuntimeError)):
        monitor.log(loss=wrong)
    caplog.clear()
    with watch(model, optimizer, strict=False) as monitor:
        for _ in range(3):
            train(model, optimizer, 1)
            monitor.log(loss=wrong, other=1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "rank 0, step 0: 'log loss' failed" in caplog.text
    assert scalar(monitor, "loss") == {}
    assert scalar(monitor, "other") == {0: 1.0, 1: 1.0, 2: 1.0}


def test_logging_after_close_does_nothing():
    model, optimizer = made()
    monitor = watch(model, optimizer)
    train(model, optimizer, 1)
    monitor.close()
    monitor.log(loss=1.0)
    monitor.step()
    assert scalar(monitor, "loss") == {}
    assert len(records(monitor)) == 1


# What is refused


def test_options_that_cannot_be_used_are_refused_with_the_nearest_name():
    model, optimizer = made()
    for options, message in (
        ({"evry": 2}, "unknown 'evry'. Did you mean 'every'?"),
        ({"quantities": ["gradiant"]}, "unknown 'gradiant'. Did you mean 'gradient'?"),
        ({"statistics": ["nrom"]}, "unknown 'nrom'. Did you mean 'norm'?"),
        ({"targets": ["dwn.weight"]}, "'dwn.weight' matches nothing in this model. Did you mean 'down.weight'?"),
        ({"sinks": ["stor"]}, "unknown 'stor'. Did you mean 'store'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            watch(model, optimizer, **options)
        assert message in str(caught.value)


@pytest.mark.parametrize("wrong", [3, "model", None, [], [3], {"a": nn.ReLU()}, object()])
def test_what_is_no_model_is_refused(wrong):
    with pytest.raises(ModelError):
        watch(wrong)


def test_a_model_without_parameters_is_refused():
    with pytest.raises(ModelError, match="ReLU has no parameters"):
        watch(nn.ReLU())


def test_an_optimizer_of_another_model_is_refused():
    model, _ = made()
    with pytest.raises(ModelError, match="has none of the model's parameters"):
        watch(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1))


def test_what_is_no_optimizer_is_refused():
    model, _ = made()
    with pytest.raises(ModelError, match=r"expected a torch.optim.Optimizer, got str"):
        watch(model, optimizer="adam")


def test_watching_a_model_again_closes_the_monitor_before_and_says_so(capsys):
    model, optimizer = made()
    for again in (model, torch.nn.Sequential(model), model.up, [model], {"it": model}):
        before = watch(model, optimizer)
        train(model, optimizer, 1, before)
        after = watch(again)
        assert capsys.readouterr().err == ("vario: closed the earlier Monitor of this model and started a new one\n")
        train(model, optimizer, 2, after)
        after.wait()
        assert [len(records(monitor)) for monitor in (before, after)] == [1, 2]
        before.close()
        assert after.watches(model)
        after.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_folder_that_holds_a_run_is_refused_and_resuming_goes_on(tmp_path):
    options = {"directory": str(tmp_path), "name": "one", "sinks": ["store"], "quantities": ["gradient"]}
    model, optimizer = made()
    with watch(model, optimizer, **options) as monitor:
        train(model, optimizer, 3, monitor)
    with pytest.raises(RunTaken, match="already contains a run"):
        vario.watch(model, optimizer, **options)
    with watch(model, optimizer, resume=True, **options) as monitor:
        train(model, optimizer, 2, monitor)
    run = vario.open_run(tmp_path / "one")
    assert run.steps("gradient").tolist() == run.steps().tolist() == [0, 1, 2, 3, 4]
    assert run.state == "finished"
    assert len(run.sessions) == 2


def test_a_rank_that_was_not_asked_for_records_nothing(tmp_path):
    model, optimizer = made()
    with watch(model, optimizer, ranks=[1], directory=str(tmp_path), sinks=["store"]) as monitor:
        train(model, optimizer, 2, monitor)
        monitor.step()
    assert monitor.path is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_on_disk_reads_as_it_was_observed(tmp_path):
    model, optimizer = made()
    with watch(model, optimizer, sinks=["store", "in_memory"], directory=str(tmp_path), name="one") as monitor:
        train(model, optimizer, 5, monitor)
    run = vario.open_run(tmp_path / "one")
    kept = rows(monitor)
    for quantity in EVERYTHING:
        table = run.to_arrow(quantity).to_pylist()
        assert len(table) == sum(key[1] == quantity for key in kept)
        for row in table:
            expected = kept[row["step"], quantity, row["micro_step"], row["target"]]
            assert [row["count"], row["sum"], row["min"]] == [expected[0], expected[1], expected[3]]
    assert run.series("loss", "scalar").values.tolist() == list(scalar(monitor, "loss").values())
    saved = json.loads((tmp_path / "one" / "run.json").read_text())
    assert saved["config"]["quantities"] == EVERYTHING


@thorough
def test_runs_that_start_in_the_same_second_get_folders_of_their_own(tmp_path):
    script = (
        "import torch, vario\n"
        "model = torch.nn.Linear(2, 1)\n"
        f"monitor = vario.watch(model, directory={str(tmp_path)!r}, strict=True)\n"
        "model(torch.ones(1, 2)).sum().backward()\n"
        "monitor.close()\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", script]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len(vario.list_runs(tmp_path)) == 3


def test_targets_that_leave_nothing_are_refused():
    model, optimizer = made()
    with pytest.raises(ConfigError, match="nothing is left to watch"):
        watch(model, optimizer, targets=["*"], invert=True)


def test_the_step_in_progress_can_be_looked_at(tmp_path):
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, ["activation", "gradient"])
    assert monitor.is_between_steps
    assert monitor.frames_so_far() == []
    loss = model(batch(0)).square().mean()
    assert {frame.quantity for frame in monitor.frames_so_far()} == {"activation"}
    loss.backward()
    (gradients,) = [frame for frame in monitor.frames_so_far() if frame.quantity == "gradient"]
    assert (gradients.step, monitor.next_step_number, monitor.is_between_steps) == (0, 0, False)
    expected = float(model.down.weight.grad.double().square().sum())
    row = gradients.summaries[list(gradients.targets).index("down.weight")]
    assert row[SUM_SQUARES] == pytest.approx(expected, rel=1e-5)
    optimizer.step()
    assert (monitor.next_step_number, monitor.is_between_steps) == (1, True)
    monitor.wait()
    # Looking took nothing away.
    (record,) = records(monitor)
    assert sorted(frame.quantity for frame in record.frames) == ["activation", "gradient"]
    monitor.close()


def test_a_monitor_may_be_closed_and_another_made_when_a_step_is_recorded():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitors = []

    def restart(step):
        if monitors:
            monitors[-1].close()
        monitors.append(watch(model, optimizer, ["gradient"], first_step=step + 1))
        monitors[-1].on_step_recorded(restart)

    restart(-1)
    for step in range(3):
        model(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitors[-1].close()
    assert [[record.step for record in records(monitor)] for monitor in monitors] == [[0], [1], [2], []]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_a_look_at_the_trained_model_is_no_step():
    model, optimizer = made()
    with watch(model, optimizer) as monitor:
        train(model, optimizer, 3, monitor)
        model(batch(0))  # in training mode, with gradients on
    assert [record.step for record in records(monitor)] == [0, 1, 2]


def test_numbers_logged_after_such_a_look_are_kept():
    model, optimizer = made()
    with watch(model, optimizer) as monitor:
        train(model, optimizer, 3, monitor)
        monitor.log(accuracy=model(batch(0)).detach().mean())
    assert "accuracy" in {name for record in records(monitor) for name in record.scalars.values}
