import os
from importlib.metadata import distributions

# Processes that tests start keep what they compile: without it, importing torch takes more than twice the time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Before anything loads OpenMP: the tensors of tests are tiny, and threads that wait for each other's share of them keep
# whole cores busy, on a busy machine for minutes.
# Two for torch 2.6: for one, its inductor adds up the gradient of an embedding wrongly, watched or not.
os.environ.setdefault(
    "OMP_NUM_THREADS", "2" if any(found.version.startswith("2.6.") for found in distributions(name="torch")) else "1"
)
# Graphs of tests are tiny: processes that compile them beside this one would only import torch once more.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# Intervals that follow from measured time would differ from run to run: tests of the budget set one.
os.environ["VARIO_OVERHEAD"] = "off"
# What the machine does is read by the clock as well: tests of it ask for it.
os.environ["VARIO_MACHINE"] = "off"

import gc
import subprocess
import sys
import time
from pathlib import Path

import pytest

import starting
import synthetic

# GNU readline, which pytest imports, puts the width of its terminal into the environment of the processes it starts.
os.environ.pop("COLUMNS", None)
os.environ.pop("LINES", None)


def pytest_collection_modifyitems(items):
    """Files with slow tests come first: two processes that share the files should both be busy to the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_ignore_collect(collection_path, config):
    """With `-m gpu` only files that have such tests are read: others need packages that a GPU machine may lack."""
    if config.option.markexpr != "gpu" or collection_path.name == "tests":
        return None
    files = [collection_path] if collection_path.is_file() else collection_path.rglob("test_*.py")
    return None if any(b"mark.gpu" in file.read_bytes() for file in files) else True


@pytest.fixture(autouse=True, scope="module")
def what_is_there_is_looked_at_no_more():
    """A process of tests has imported more and more: neither Python's collector nor vario's searches for optimizers and
    engines go through all of that again in each test of a file."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def the_environment_is_as_before():
    """Trainers of transformers 4 leave their precision in the environment, and child processes inherit it."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[name]


@pytest.fixture(autouse=True)
def nothing_of_a_test_watches_the_next():
    """Monitors that a test leaves open are closed; what a closed one leaves on modules is a fault of that test."""
    yield
    if succession := sys.modules.get("vario.training.succession"):
        for monitor in list(succession._open):
            monitor.close()
    if module_hooks := sys.modules.get("vario.backends.torch.loop.module_hooks"):
        left = sorted(hook.__qualname__ for hook, _ in module_hooks._handles)
        for handle in module_hooks._handles.values():
            handle.remove()
        module_hooks._handles.clear()
        module_hooks._calls.clear()
        module_hooks._restore_copying()
        assert left == [], "hooks that nobody removed"


@pytest.fixture(autouse=True)
def waiting_is_allowed_again(request):
    """A test that fails while waiting for the GPU is an error must not leave that to the tests after it."""
    yield
    if request.node.get_closest_marker("gpu") is not None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """An empty place to work in, with the clock of Greenwich, plain output and a fixed width."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"TZ": "UTC", "COLUMNS": "110", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    time.tzset()
    yield tmp_path
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def healthy_run(run_folder):
    return synthetic.write_run(run_folder / "vario_runs" / "healthy", started=synthetic.STARTED - 3600)


@pytest.fixture
def broken_run(run_folder):
    return synthetic.write_run(run_folder / "vario_runs" / "broken", bad_step=25)


@pytest.fixture(scope="session")
def mindspore():
    """`mindspore(*words)` runs `python WORDS` in the environment of MindSpore, with vario from this checkout.

    It returns the ended process. MindSpore has an environment of its own (`make mindspore`): tests start programs there
    and read what they leave.
    """
    root = Path(__file__).parents[1]
    missing, python = root / ".mindspore" / "missing.txt", root / ".mindspore" / "bin" / "python"
    if missing.exists():
        pytest.skip(missing.read_text().strip())
    if not python.exists():
        pytest.skip("there is no .mindspore: run `make mindspore`")

    def run(*words, cwd, check=True, **environment):
        path = os.pathsep.join(map(str, (root / "src", Path(__file__).parent / "backends" / "on_mindspore")))
        env = {**os.environ, "PYTHONPATH": path, **starting.MINDSPORE_ENVIRONMENT, **environment}
        done = subprocess.run(
            [str(python), *map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=280
        )
        assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done

    return run


@pytest.fixture(scope="session")
def sweep(tmp_path_factory):
    """The thirty runs of a sweep, trained once."""
    import sweep  # and torch with it, which other tests do not need

    return sweep.train_sweep(tmp_path_factory.mktemp("sweep"))
