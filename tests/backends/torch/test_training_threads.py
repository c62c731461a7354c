"""Models trained on threads: several at once, one by several in turns, and one by two at the same time."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import vario
from starting import run_warm
from vario.backends.torch.loop import training_threads


def make(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def train(model, optimizer, steps, seed):
    made = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        loss = model(torch.randn(8, 6, generator=made)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def numbers(run):
    """Every value of a run but those that time decides."""
    found = {}
    for quantity in run.quantities():
        for target in run.targets(quantity):
            if quantity != "scalar" or target.startswith("loss"):
                series = run.series(target, quantity, "norm" if quantity != "scalar" else None)
                found[quantity, target] = series.steps.tolist(), series.values.tolist()
    return found


def watched(folder, seed, steps):
    model, optimizer = make(seed)
    return model, optimizer, vario.watch(model, optimizer, directory=folder, name=f"seed{seed}", every=1), steps


def test_two_models_on_two_threads_are_each_recorded_as_if_they_were_alone(tmp_path):
    together = [watched(tmp_path / "together", seed, 40) for seed in (1, 2)]
    barrier = threading.Barrier(2)

    def work(model, optimizer, monitor, steps, seed):
        barrier.wait()
        train(model, optimizer, steps, seed)

    threads = [threading.Thread(target=work, args=(*each, seed)) for seed, each in enumerate(together)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, each in enumerate(together):
        each[2].close()
        alone = watched(tmp_path / "alone", seed + 1, 40)
        train(*alone[:2], 40, seed)
        alone[2].close()
        run = vario.open_run(each[2].path)
        assert run.steps().tolist() == list(range(40))
        assert not run.parts_off
        assert numbers(run) == numbers(vario.open_run(alone[2].path))


def test_threads_that_take_turns_make_one_run(tmp_path):
    model, optimizer, monitor, _ = watched(tmp_path, 1, 12)
    with ThreadPoolExecutor(3) as pool:
        gate = threading.Barrier(3)
        pool.map(lambda _: gate.wait(), range(3))  # so that all three threads are there, and wait for work
        for step in range(12):
            pool.submit(train, model, optimizer, 1, step).result()
    train(model, optimizer, 1, 99)
    monitor.close()
    run = vario.open_run(monitor.path)
    assert run.steps().tolist() == list(range(13))
    assert not run.parts_off


def test_of_two_threads_that_train_one_model_at_once_the_first_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(
        training_threads, "_SECONDS_OF_SILENCE", float("inf")
    )  # on a busy machine the second one takes long
    model, optimizer, monitor, _ = watched(tmp_path, 1, 0)
    other_ended = []

    def other():
        train(model, torch.optim.SGD(model.parameters(), lr=0.0), 3, 5)
        other_ended.append(True)

    made = torch.Generator().manual_seed(0)
    for step in range(6):
        out = model(torch.randn(8, 6, generator=made))
        optimizer.zero_grad()
        out.square().mean().backward()
        if step == 2:
            threading.Thread(target=other, name="second").start()
            while not other_ended:
                sum(range(1000))  # at work, as a thread that trains is
        optimizer.step()
    monitor.close()
    run = vario.open_run(monitor.path)
    assert run.steps().tolist() == list(range(6))
    [off] = run.parts_off
    assert off.part == training_threads.OTHERS
    assert "thread 'second'" in off.error


def test_the_first_watch_may_come_from_two_threads_at_once(tmp_path):
    script = """
import sys, threading, torch, vario
gate = threading.Barrier(4)
def work(number):
    model = torch.nn.Linear(3, 2)
    gate.wait()
    vario.watch(model, directory=sys.argv[1], name=f"run{number}").close()
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(vario.list_runs(tmp_path)) == 4


@pytest.mark.parametrize("num_models", [1, 2])
def test_an_unchanged_script_that_trains_on_threads(tmp_path, num_models):
    script = tmp_path / "train.py"
    script.write_text(f"""
import threading, torch
from torch import nn

def train(seed):
    parts = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range({num_models})]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in parts]
    for _ in range(10):
        for nth, optimizer in enumerate(optimizers):
            x = torch.randn(8, 4)
            for part in parts:
                x = part(x)
            optimizer.zero_grad()
            x.square().mean().backward()
            optimizer.step()

threads = [threading.Thread(target=train, args=(seed,)) for seed in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
""")
    done = run_warm(["-m", "vario", "run", script], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = vario.list_runs(tmp_path / "vario_runs")
    assert [run.steps().tolist() for run in runs] == [list(range(10))] * 2
    assert not [off for run in runs for off in run.parts_off]
