"""Monitors one after the other in one process: cells run again, grid searches, cross-validation."""

import gc
import json
import os
import weakref

import pytest
import torch

import vario
from starting import run_warm


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_model():
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, num_steps=2):
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


def stored():
    return vario.list_runs("vario_runs")


def test_a_cell_that_is_run_again_starts_a_run_anew(here, capsys):
    model, optimizer = make_model()
    cell = compile("monitor = vario.watch(model, optimizer, name='cell')", "<ipython-input-1>", "exec")
    names = {"vario": vario, "model": model, "optimizer": optimizer}
    exec(cell, names)
    train(model, optimizer)
    exec(cell, names)
    train(model, optimizer, 3)
    names["monitor"].close()
    assert [(run.name, run.state, run.last_step) for run in stored()] == [
        ("cell", "finished", 1),
        ("cell-2", "finished", 2),
    ]
    assert capsys.readouterr().err == (
        "vario: closed the earlier Monitor of this model (vario_runs/cell) and started a new one\n"
    )


def test_a_model_watched_from_another_line_has_the_new_monitor(here, capsys):
    model, optimizer = make_model()
    first = vario.watch(model, optimizer, name="one")
    train(model, optimizer)
    second = vario.watch(model, optimizer, name="two")
    train(model, optimizer, 3)
    first.log(loss=1.0)
    first.close()
    second.close()
    assert [(run.name, run.last_step) for run in stored()] == [("one", 1), ("two", 2)]
    assert capsys.readouterr().err == (
        "vario: closed the earlier Monitor of this model (vario_runs/one) and started a new one\n"
    )


def test_models_that_a_loop_makes_anew_are_a_group_and_leave_the_memory(here):
    models = weakref.WeakSet()
    for _ in range(4):
        model, optimizer = make_model()
        models.add(model)
        monitor = vario.watch(model, optimizer)
        train(model, optimizer)
    monitor.close()
    gc.collect()
    assert list(models) == [model]
    runs = stored()
    assert [run.last_step for run in runs] == [1, 1, 1, 1]
    assert {run.state for run in runs} == {"finished"}
    assert len({run.group for run in runs}) == 1
    with vario.watch(model, optimizer):
        train(model, optimizer)
    assert len({run.group for run in stored()}) == 2, "another line begins another group"


def test_larger_models_leave_the_memory_as_well(here):
    others = weakref.WeakSet()
    for _ in range(3):
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.LSTM(8, 2))
        optimizer = torch.optim.AdamW(model.parameters())
        others.add(model)
        monitor = vario.watch({"it": model}, optimizer, every=1, sinks=[])
        for _ in range(2):
            model(torch.ones(2, 4))[0].sum().backward()
            optimizer.step()
    monitor.close()
    gc.collect()
    assert len(others) == 1


def test_models_that_train_side_by_side_keep_their_monitors(here):
    ensemble = [make_model() for _ in range(3)]
    monitors = [vario.watch(*member, name=f"member{nth}") for nth, member in enumerate(ensemble)]
    for _ in range(2):
        for member in ensemble:
            train(*member, 1)
    ensemble.append(make_model())
    monitors += [vario.watch(*member, name="late") for member in ensemble[3:]]
    for member in ensemble:
        train(*member, 1)
    for monitor in monitors:
        monitor.close()
    assert [run.last_step for run in stored()] == [2, 2, 2, 0]


class Training:
    """Begins to watch in its own constructor."""

    def __init__(self, name):
        self.model, self.optimizer = make_model()
        self.monitor = vario.watch(self.model, self.optimizer, name=name)


def test_trainings_that_take_turns_keep_their_monitors(here):
    first = Training("first")
    train(first.model, first.optimizer)
    second = Training("second")
    train(second.model, second.optimizer)
    train(first.model, first.optimizer)
    for training in (first, second):
        training.monitor.close()
    assert {run.name: run.last_step for run in stored()} == {"first": 3, "second": 1}


def test_a_model_that_a_function_holds_is_not_abandoned(here):
    def fit(depth):
        model, optimizer = make_model()
        monitor = vario.watch(model, optimizer, name=f"depth{depth}")
        train(model, optimizer)
        if depth < 2:
            fit(depth + 1)
        train(model, optimizer)
        monitor.close()

    fit(0)
    assert {run.name: run.last_step for run in stored()} == {"depth0": 3, "depth1": 3, "depth2": 3}


SEARCH = """
import torch
for lr in (0.1, 0.2, 0.3):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def run_vario(*words):
    environment = {**os.environ, "COLUMNS": "200"}
    return run_warm(["-m", "vario", *words], env=environment)


@pytest.mark.slow
def test_a_search_is_one_line_of_the_list(here):
    (here / "search.py").write_text(SEARCH)
    done = run_vario("run", "--name", "search", "search.py")
    assert done.returncode == 0, done.stderr
    with vario.watch(make_model()[0], name="alone"):
        pass
    listed = run_vario("ls").stdout
    assert "search (3 runs)" in listed
    assert "search-2" not in listed
    every = run_vario("ls", "--all").stdout
    assert all(name in every for name in ("search-2", "search-3"))
    assert "(3 runs)" not in every
    rows = json.loads(run_vario("ls", "--json").stdout)
    assert [row["name"] for row in rows] == ["search", "search-2", "search-3", "alone"]
    assert len({row["group"] for row in rows}) == 2


@pytest.mark.slow
def test_a_script_that_watches_late_takes_over_from_vario_run(here):
    late = "        if _ == 1 and lr == 0.1:\n            import vario; vario.watch(model, name='own')\n"
    zero = "        optimizer.zero_grad()\n"
    (here / "search.py").write_text(SEARCH.replace(zero, late + zero))
    done = run_vario("run", "--name", "launched", "search.py")
    assert done.returncode == 0, done.stderr
    assert "vario: closed the earlier Monitor of this model (vario_runs/launched)" in done.stderr
    assert {run.name: run.last_step for run in stored()}["own"] == 1
