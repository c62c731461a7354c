"""Runs that a script leaves open say how the script ended, and the script ends as it would without them."""

import json
import signal
import subprocess
import sys
from functools import partial

import pytest

import vario
from starting import run_warm

OPEN = """
from vario.training.leaving import Leaving
def close(*how):
    leaving.cancel()
    print("run:", *how, flush=True)
leaving = Leaving(close)
"""
FINISHED = "finished None"
UNKNOWN = "interrupted SystemExit: exit code unknown"
THREAD = "import threading\ndef work():\n    leaving.trained(0.0)\n    {}\nthreading.Thread(target=work).start()"
ENDINGS = {
    "": FINISHED,
    "sys.exit(3)": "crashed SystemExit: 3",
    "sys.exit(0)": FINISHED,
    "sys.exit()": FINISHED,
    "sys.exit('no input')": "crashed SystemExit: no input",
    "sys.exit(143)": "interrupted SIGTERM",
    "exit(4)": "crashed SystemExit: 4",
    "quit()": FINISHED,
    "leave(5)": "crashed SystemExit: 5",
    "def main():\n    sys.exit(6)\nmain()": "crashed SystemExit: 6",
    "async def main():\n    sys.exit(6)\nimport asyncio\nasyncio.run(main())": "crashed SystemExit: 6",
    "try:\n    1 / 0\nexcept ArithmeticError:\n    sys.exit(1)": (
        "crashed SystemExit: 1, after ZeroDivisionError: division by zero"
    ),
    "raise SystemExit(3)": "crashed SystemExit: 3",
    "raise SystemExit": FINISHED,
    "def main():\n    return 0\nraise SystemExit(main())": FINISHED,
    "def main():\n    raise SystemExit(3)\nmain()": UNKNOWN,
    "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass": FINISHED,
    "try:\n    sys.exit(3)\nexcept SystemExit:\n    leaving.trained(0.0)\n    raise SystemExit(0)": FINISHED,
    "try:\n    sys.exit(3)\nexcept SystemExit:\n    pass\n1 / 0": "crashed ZeroDivisionError: division by zero",
    "sys.excepthook = lambda *_: print('seen')\n1 / 0": "crashed ZeroDivisionError: division by zero",
    "import atexit\natexit.register(print, 'bye')\nsys.exit(2)": "crashed SystemExit: 2",
    "sys.exit = lambda code: os._exit(code)\nprint('own', flush=True)\nsys.exit(7)": None,
    "import signal\nsignal.raise_signal(signal.SIGINT)": "interrupted None",
    "import signal\nsignal.raise_signal(signal.SIGTERM)": None,
    "import signal\nsignal.signal(15, lambda *_: sys.exit(0))\nsignal.raise_signal(15)": FINISHED,
    THREAD.format("1 / 0"): "crashed the thread that trained ended with an exception",
    THREAD.format("sys.exit(0)"): FINISHED,
    THREAD.format("pass"): FINISHED,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_that_is_left_open_says_how_its_script_ended(tmp_path, ending):
    start = "import os, sys\nfrom sys import exit as leave\n"
    results = []
    for middle in ("leaving = type('None', (), {'trained': lambda _, seconds: None})()\n", OPEN):
        (tmp_path / "train.py").write_text(start + middle + ending + "\n")
        # A background job inherits that Ctrl-C is ignored.
        heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
        results.append(
            subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, preexec_fn=heard)
        )
    plain, watched = results
    said = [line for line in watched.stdout.splitlines() if line.startswith("run: ")]
    assert said == ([] if ENDINGS[ending] is None else [f"run: {ENDINGS[ending]}"])
    others = "".join(line for line in watched.stdout.splitlines(keepends=True) if not line.startswith("run: "))
    assert (watched.returncode, others) == (plain.returncode, plain.stdout)
    assert watched.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]


TRAINING = """
import json, os, signal, sys, threading, torch
from multiprocessing import get_context
if OWN:
    import torch._dynamo, vario.training.monitor, vario.backends.torch.model  # once, not in each of the children
torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    optimizer.zero_grad()
    model(torch.ones(6, 4)).square().mean().backward()
    optimizer.step()
def watch(name):
    import vario
    return vario.watch(model, optimizer, directory="runs", name=name) if OWN else None
def work():
    train()
    raise ValueError("of a thread")
def work_in_process():
    monitor = watch("inner")
    train()
    raise ValueError("of a process")
found = {}
for name, ending in json.loads(sys.argv[1]).items():
    if not (child := os.fork()):
        monitor = watch(name)
        train()
        exec(ending)
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    found[name] = [f"all-{child}", code]
else:
    json.dump(found, open("found.json", "w"))
"""
WORDLESS = "the process ended without an error message: by a signal such as SIGTERM or SIGKILL, or by os._exit"
TRAININGS = {
    "well": ("", 0, "finished", None),
    "code": ("sys.exit(3)", 3, "crashed", "SystemExit: 3"),
    "error": ("raise ValueError('of the user')", 1, "crashed", "ValueError: of the user"),
    "caught": ("try:\n    sys.exit(3)\nexcept SystemExit:\n    train()", 0, "finished", None),
    "terminated": ("os.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()", -15, "crashed", WORDLESS),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", -9, "crashed", WORDLESS),
    "left": ("os._exit(0)", 0, "crashed", WORDLESS),
    "handled": (
        "signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))\nsignal.raise_signal(15)",
        143,
        "interrupted",
        "SIGTERM",
    ),
    "process": (
        "one = get_context('fork').Process(target=work_in_process)\none.start()\none.join()",
        0,
        "finished",
        None,
    ),
    "thread": (
        "one = threading.Thread(target=work)\none.start()\none.join()",
        0,
        "crashed",
        "the thread that trained ended with an exception",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["watch", "vario run"])
def test_trainings_that_end_in_many_ways_leave_runs_that_say_so(tmp_path, own):
    (tmp_path / "train.py").write_text(f"OWN = {own}\n" + TRAINING)
    words = ["train.py"] if own else ["-m", "vario", "run", "--directory", "runs", "--name", "all", "train.py"]
    texts = json.dumps({name: text for name, (text, *_) in TRAININGS.items()})
    done = run_warm([*words, texts], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    for name, (_, code, state, error) in TRAININGS.items():
        ended = vario.open_run(tmp_path / "runs" / (name if own else found[name][0]))
        assert (name, found[name][1], ended.state, ended.error) == (name, code, state, error)
    if own:
        inner = vario.open_run(tmp_path / "runs" / "inner")
        assert (inner.state, inner.error) == ("crashed", "ValueError: of a process")
