"""The off switch: `VARIO=off`, or `enabled=False`."""

import inspect
import os
import subprocess
import sys

import pytest
import torch

import vario
from vario.analysis.training import TrainingMonitor
from vario.training.idle import IdleMonitor
from vario.training.monitor import Monitor

FOR_PROBES = {"observer", "guarded", "switch_off", "take_back", "seal", "update_completed", "step_ended"}
FOR_PROBES |= {"forward_began", "forward_failed"}
FOR_RUN = {"is_busy_elsewhere", "begin_with"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_model():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train_with_every_call(monitor, model, optimizer):
    with monitor:
        monitor.on_incident(print)
        monitor.batch(torch.ones(2, 4))
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss, text=None)
        monitor.step()
        monitor.number_next_step(7)
        monitor.wait()
        assert not monitor.should_stop
        assert not monitor.should_checkpoint
        assert monitor.frames_so_far() == []
        assert (monitor.path, monitor.is_leading, monitor.follows(optimizer)) == (None, True, False)
    monitor.close("crashed", "twice")


def test_enabled_false_leaves_the_model_and_the_folder_alone(here):
    model, optimizer = make_model()
    monitor = vario.watch(model, optimizer, enabled=False)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    train_with_every_call(monitor, model, optimizer)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("word", ["off", "OFF", "0", "false", "no"])
def test_the_environment_switches_off_whatever_the_options_say(here, monkeypatch, word):
    monkeypatch.setenv("VARIO", word)
    model, optimizer = make_model()
    train_with_every_call(vario.watch(model, optimizer, enabled=True, name="run"), model, optimizer)
    assert list(here.iterdir()) == []


def test_a_config_can_be_off(here):
    model, optimizer = make_model()
    train_with_every_call(vario.watch(model, config=vario.Config(enabled=False)), model, optimizer)
    assert list(here.iterdir()) == []


def test_a_word_that_is_not_understood_is_told_once_and_changes_nothing(here, monkeypatch, caplog):
    monkeypatch.setenv("VARIO", "offf")
    for name in ("one", "two"):
        vario.watch(make_model()[0], name=name).close()
    assert len(vario.list_runs(here / "vario_runs")) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "VARIO=offf is unknown and has no effect. Use off or on."
    ]


def test_what_a_monitor_takes_is_what_an_idle_one_takes():
    public = {name for name in dir(Monitor) if not name.startswith("_")} - FOR_PROBES - FOR_RUN
    assert public <= set(dir(IdleMonitor))
    for name in public:
        found = inspect.getattr_static(Monitor, name)
        if inspect.isfunction(found):
            assert inspect.signature(found) == inspect.signature(getattr(IdleMonitor, name)), name


def run_python(folder, *words):
    environment = {**os.environ, "VARIO": "off"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_watching_that_is_off_imports_nothing(here):
    code = (
        "import sys, vario\n"
        "with vario.watch(object(), every='nonsense') as monitor:\n    monitor.log(loss=1.0)\n"
        "print([name for name in ('numpy', 'pyarrow', 'torch', 'vario.training.monitor') if name in sys.modules])"
    )
    done = run_python(here, "-c", code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_vario_run_that_is_off_runs_the_script_plain(here):
    (here / "train.py").write_text(
        "import sys\n"
        "print(sys.argv, __name__, 'torch' in sys.modules)\n"
        "import torch\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(2):\n    model(torch.ones(2, 4)).sum().backward()\n    optimizer.step()\n"
        "print([name for name in sys.modules if name.startswith('vario.backends.torch')])\n"
    )
    done = run_python(here, "-m", "vario", "run", "train.py", "--flag")
    assert done.stdout == "['train.py', '--flag'] __main__ False\n[]\n"
    assert (done.stderr, done.returncode) == ("", 0)
    assert not (here / "vario_runs").exists()


def test_a_trainer_mon_that_is_off_reads_and_writes_nothing(here, monkeypatch):
    from vario.compat.msprobe import TrainerMon

    monkeypatch.setenv("VARIO", "off")
    model, optimizer = make_model()
    monitor = TrainerMon(here / "no_such.json", params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    monitor.ops = ["norm"]
    assert monitor.generate_wgrad_metrics() == ({}, {})
    assert monitor.generate_xy_metrics() == ({}, {})
    monitor.close()
    assert list(here.iterdir()) == []


def test_a_look_from_inside_the_loop_is_off_as_well(monkeypatch):
    monkeypatch.setenv("VARIO", "off")
    looks = TrainingMonitor(make_model()[0], check_every=1)
    assert looks.step(1.0) is None
    assert looks.history == []


def test_the_demo_says_that_it_is_switched_off(here):
    done = run_python(here, "-m", "vario", "demo", "--steps", "2")
    assert done.returncode == 2
    assert done.stderr == "vario: demo: VARIO=off is set, so there is nothing to watch. Unset it.\n"
