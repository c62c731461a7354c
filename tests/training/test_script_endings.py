"""How a script ends under `vario run`: the same stderr, exit code and traceback as without, and a run that says how."""

import os
import signal
import subprocess
import sys
import textwrap
from functools import partial

import pytest
import torch

import vario
from starting import run_warm

pytestmark = pytest.mark.slow

TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    optimizer.zero_grad()
    model(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()
train()
train()
"""
STOPPED = TRAINING + "import signal\nsignal.raise_signal(signal.SIGINT)\n"
ENDINGS = {
    "ctrl_c": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)",
    "ctrl_c_in_a_function": "def wait():\n    import signal\n    signal.raise_signal(signal.SIGINT)\nwait()",
    "exception": "def fail():\n    raise RuntimeError('loss is gone')\nfail()",
    "chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('no a') from error",
    "group": "try:\n    raise ExceptionGroup('two', [ValueError(1)])\nexcept NameError:\n    raise",
    "in_a_module": "import other\nother.fail()",
    "of_vario": "import vario\nvario.open_run('no such run')",
    "own_hook": "import sys\nsys.excepthook = lambda kind, error, _: print('seen', kind, file=sys.stderr)\n1 / 0",
    "code": "import sys\nsys.exit(3)",
    "text": "raise SystemExit('no input')",
    "left_well": "import sys\nsys.exit()",
    "at_exit": "import atexit\natexit.register(print, 'bye')\nraise KeyboardInterrupt('enough')",
    "stopped_by_its_own_handler": (
        "import signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\n"
        "signal.raise_signal(signal.SIGTERM)"
    ),
    "killed": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()",
    "broken_pipe": "raise BrokenPipeError(32, 'gone')",
    "not_compiled": "loss = = 3",
}


def run_python(folder, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Tests that are started in the background of a shell ignore Ctrl-C, and would hand that on.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    words = [sys.executable, *words]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, preexec_fn=heard)


def without_ours(text):
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("vario: "))


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_ends_as_it_would_without_vario(tmp_path, name):
    (tmp_path / "train.py").write_text(ENDINGS[name] + "\n")
    (tmp_path / "other.py").write_text("def fail():\n    return [][1]\n")
    plain = run_python(tmp_path, "train.py")
    watched = run_python(tmp_path, "-m", "vario", "run", "train.py")
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout)
    assert without_ours(watched.stderr) == plain.stderr


@pytest.mark.parametrize(
    ("error", "state", "told"),
    [
        (KeyboardInterrupt(), "interrupted", None),
        (SystemExit(130), "interrupted", "SIGINT"),
        (SystemExit(143), "interrupted", "SIGTERM"),
        (SystemExit(3), "crashed", "SystemExit: 3"),
        (SystemExit("no input"), "crashed", "SystemExit: no input"),
        (SystemExit(), "finished", None),
        (SystemExit(0), "finished", None),
        (RuntimeError("loss is gone"), "crashed", "RuntimeError: loss is gone"),
    ],
)
def test_a_run_says_how_its_training_ended(tmp_path, error, state, told):
    with pytest.raises(type(error)), vario.watch(torch.nn.Linear(4, 1), directory=str(tmp_path), name="run"):
        raise error
    found = vario.open_run(tmp_path / "run")
    assert (found.state, found.error) == (state, told)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Where a script lies that Ctrl-C stops, and how it ends without vario."""
    folder = tmp_path_factory.mktemp("stopped")
    (folder / "train.py").write_text(STOPPED)
    return folder, run_python(folder, "train.py")


def test_ctrl_c_interrupts_a_run_and_shows_the_scripts_own_traceback(stopped):
    folder, plain = stopped
    watched = run_python(folder, "-m", "vario", "run", "--name", "watched", "train.py")
    # By the signal; python itself ends with 1 instead once an optimizer has imported torch._dynamo.
    assert watched.returncode == plain.returncode != 0
    assert without_ours(watched.stderr) == plain.stderr
    found = vario.open_run(folder / "vario_runs" / "watched")
    assert (found.state, found.last_step) == ("interrupted", 1)


def test_a_module_shows_the_traceback_that_python_m_shows(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text("raise KeyError('batch')\n")
    plain = run_python(tmp_path, "-m", "package")
    watched = run_python(tmp_path, "-m", "vario", "run", "-m", "package")
    assert "KeyError: 'batch'" in plain.stderr
    assert (without_ours(watched.stderr), watched.returncode) == (plain.stderr, plain.returncode)


def test_a_script_is_the_main_module_as_under_python(tmp_path):
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
        import pickle, sys
        class Batch: pass
        print(type(pickle.loads(pickle.dumps(Batch()))) is Batch, sys.modules["__main__"].Batch is Batch)
        print(__file__, __name__, __spec__, __package__, __doc__, __cached__, sys.argv, sys.path[0])
        print(sorted(globals()))
        """)
    )
    plain = run_python(tmp_path, "train.py", "--flag")
    watched = run_python(tmp_path, "-m", "vario", "run", "train.py", "--flag")
    assert watched.stdout == plain.stdout


def test_a_thread_that_goes_on_training_is_watched_to_its_end(tmp_path):
    text = "import threading\ndef more():\n    for _ in range(5): train()\nthreading.Thread(target=more).start()\n"
    (tmp_path / "train.py").write_text(TRAINING + text)
    watched = run_warm(["-m", "vario", "run", "--name", "watched", "train.py"], cwd=tmp_path)
    assert watched.returncode == 0, watched.stderr
    assert vario.open_run(tmp_path / "vario_runs" / "watched").last_step == 6


def test_ctrl_c_in_a_script_that_watches_by_itself(stopped, tmp_path):
    watch = "import signal, vario\nmonitor = vario.watch(model, optimizer, name='own')\n"
    loop = watch + "train()\nsignal.raise_signal(signal.SIGINT)\n"
    (tmp_path / "train.py").write_text(TRAINING.replace("train()\ntrain()\n", loop))
    done = run_python(tmp_path, "train.py")
    assert done.returncode == stopped[1].returncode != 0
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"
    own = vario.open_run(tmp_path / "vario_runs" / "own")
    assert (own.state, own.error) == ("interrupted", None)
    assert "interrupted" in run_warm(["-m", "vario", "ls"], cwd=tmp_path).stdout
    report = run_warm(["-m", "vario", "report", "own"], cwd=tmp_path).stdout
    assert "interrupted" in report
    assert "Healthy" in report
    assert "The run was interrupted." in run_warm(["-m", "vario", "progress", "vario_runs/own"], cwd=tmp_path).stdout
