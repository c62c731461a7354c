"""Output folders as trainers leave them, put together from real files, and what the progress command says of them."""

import json
import os
import shutil
from pathlib import Path

from vario.cli import main

SAMPLES = Path(__file__).parent / "progress_samples"
LONG_AGO = 1_700_000_000.0
STATE = "trainer_state.json"


def sample(name):
    return SAMPLES / name


def put(folder, name="", state="normal__checkpoint-8", written=LONG_AGO):
    """Lay a real state into `folder/name`, written at a given time; answers its path."""
    path = folder / name / STATE
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(sample(f"{state}.json"), path)
    os.utime(path, (written, written))
    return path


def age(path, written=LONG_AGO):
    os.utime(path, (written, written))
    return path


def write_state(path, rows, written=LONG_AGO, **changes):
    """A state of chosen rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    last = max((int(row.get("step") or 0) for row in rows), default=0)
    state = {"epoch": 1.0, "global_step": last, "max_steps": 100, "num_train_epochs": 3, "best_metric": None}
    path.write_text(json.dumps({**state, **changes, "log_history": rows}, indent=2))
    return age(path, written)


def answer(capsys, *words):
    """What `vario progress --json` says."""
    capsys.readouterr()
    assert main(["progress", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *words):
    """The one line with which a command ends that cannot be done."""
    assert main(["progress", *map(str, words)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("vario: ")
    assert captured.err.count("\n") == 1
    return captured.err


def note_kinds(found):
    return [note["kind"] for note in found["notes"]]
