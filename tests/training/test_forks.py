"""A forked process that goes on training costs what it costs unwatched, and leaves its parent's run alone."""

import os
import signal
import sys
import threading

import pytest
import torch

import vario
from models import Perceptron, batch
from starting import run_afresh


def in_fork(call):
    """What a forked process answers, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(60)  # one that hangs is a failure, not a wait
        answer = "it failed"
        try:
            answer = str(call())
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        answer = file.read()
    os.waitpid(child, 0)
    return answer


def hooks_of(model, optimizer):
    """How many hooks there are, and whether methods are replaced."""
    owners = [*model.modules(), optimizer, torch.optim.Optimizer]
    names = [(str(name), value) for owner in owners for name, value in vars(owner).items()]
    counts = [(name, len(value)) for name, value in names if "hook" in name and hasattr(value, "__len__")]
    replaced = [name for module in model.modules() for name, value in vars(module).items() if callable(value)]
    tensors = [len(parameter._post_accumulate_grad_hooks or ()) for parameter in model.parameters()]
    return sorted(counts), replaced, tensors, len(torch.nn.modules.module._global_forward_hooks)


@pytest.fixture
def training():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(steps):
        for step in steps:
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()

    return model, optimizer, train


def test_a_fork_that_goes_on_training_is_as_it_was_before_it_was_watched(tmp_path, training):
    model, optimizer, train = training
    train(range(1))
    before = hooks_of(model, optimizer)
    threads = threading.active_count()
    monitor = vario.watch(model, optimizer, directory=str(tmp_path), name="parent", every=1)
    try:
        train(range(3))
        monitor.wait()
        files = sorted(path.stat().st_size for path in tmp_path.rglob("*.live.arrow"))

        def go_on():
            left = hooks_of(model, optimizer)
            train(range(40))
            monitor.log(loss=1.0)
            monitor.step()
            monitor.close()
            return left == before, threading.active_count() <= threads

        assert in_fork(go_on) == "(True, True)"
        assert sorted(path.stat().st_size for path in tmp_path.rglob("*.live.arrow")) == files
        assert hooks_of(model, optimizer) != before, "the parent is still watched"
        train(range(3))
    finally:
        monitor.close()
    run = vario.open_run(tmp_path / "parent")
    assert (run.state, run.steps("gradient").tolist(), run.parts_off) == ("finished", list(range(6)), [])


def test_a_fork_gets_a_run_of_its_own_when_it_asks_for_one(tmp_path, training):
    model, optimizer, train = training
    with vario.watch(model, optimizer, directory=str(tmp_path), name="parent", every=1):
        train(range(2))

        def ask():
            with vario.watch(model, optimizer, directory=str(tmp_path), name="child", every=1):
                train(range(4))

        in_fork(ask)
        train(range(1))
    assert vario.open_run(tmp_path / "parent").steps("gradient").tolist() == [0, 1, 2]
    assert vario.open_run(tmp_path / "child").steps("gradient").tolist() == [0, 1, 2, 3]


def test_a_fork_finds_no_module_locked_by_a_thread_of_ours(tmp_path, training, monkeypatch):
    model, optimizer, _ = training
    begun = threading.Event()
    monkeypatch.setitem(sys.modules, "begun_here", begun)
    (tmp_path / "long_import.py").write_text("import begun_here\nbegun_here.set()\nimport time\ntime.sleep(0.3)\n")
    monkeypatch.syspath_prepend(tmp_path)

    def read():
        import long_import  # noqa: F401

        return "imported"

    with vario.watch(model, optimizer, directory=str(tmp_path), name="parent"):
        thread = threading.Thread(target=read, name="vario-reading")
        thread.start()
        begun.wait()
        assert in_fork(read) == "imported"
        thread.join()


FIRST_WRITE = """
import os, threading, torch
from vario.config import Config
from vario.training.monitor import Monitor

class Busy:
    '''Works with a lock, as Arrow does with those of its allocator.'''
    lock, has_begun = threading.Lock(), threading.Event()
    def open(self, header): pass
    def write(self, record):
        with self.lock:
            self.has_begun.set()
            threading.Event().wait(0.3)
    def note(self, parts_off, num_refused): pass
    def close(self, state, error): pass
    first_step = 0

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = Monitor(model, optimizer, Config(sinks=["in_memory"]), sinks={"busy": Busy()})

def train():
    '''The writer thread writes its first step while a fork is on its way.'''
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    Busy.has_begun.wait(60)

os.register_at_fork(before=train)
if not (child := os.fork()):
    os._exit(0 if Busy.lock.acquire(timeout=5) else 1)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_that_comes_with_the_first_write_finds_no_lock_held(tmp_path):
    (tmp_path / "train.py").write_text(FIRST_WRITE)
    done = run_afresh(["train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
