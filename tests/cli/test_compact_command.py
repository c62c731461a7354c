"""`vario compact`, as a user types it."""

import json
import os

import pytest

from made_runs import header, record
from rollup_runs import random_frame, small_rollups
from vario.cli import main
from vario.runs.run import open_run


def write(path, num_steps=200, state="finished"):
    store = small_rollups()
    store.open(header(path))
    for step in range(num_steps):
        store.write(record(step, random_frame(step), loss=1.0))
    if state:
        store.close(state, None)
    return store


def test_it_prints_what_a_run_took_and_takes(tmp_path, capsys):
    write(tmp_path / "run")
    words = ["compact", str(tmp_path / "run"), "--retention", "steps=40,bytes=0"]
    assert main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "would take" in told
    assert not open_run(tmp_path / "run").thinned("gradient")
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"] == str(tmp_path / "run")
    assert not found["is_dry_run"]
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert found["after"] == {"num_bytes": sum(os.path.getsize(file) for file in files), "num_files": len(files)}
    assert found["before"]["num_files"] > len(files)
    assert open_run(tmp_path / "run").thinned("gradient")


def test_a_folder_of_runs_is_compacted_and_a_live_run_is_left_alone(tmp_path, capsys, monkeypatch):
    for name in ("a", "b"):
        write(tmp_path / name)
    store = write(tmp_path / "live", 20, state="")
    rank = json.loads((tmp_path / "live" / "rank0" / "rank.json").read_text())
    # Another process that lives: this one's parent.
    other = {**rank, "pid": os.getppid(), "born": None}
    (tmp_path / "live" / "rank0" / "rank.json").write_text(json.dumps(other))
    assert main(["compact", str(tmp_path), "--retention", "all"]) == 1
    captured = capsys.readouterr()
    assert [line.partition(":")[0] for line in sorted(captured.out.splitlines())] == ["a", "b"]
    assert "live: process" in captured.err
    assert "is still writing this run" in captured.err
    assert main(["compact", str(tmp_path / "live")]) == 2
    store.close("finished", None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "no such folder"),
        (["RUN", "--retention", "stps=4"], "retention: unknown 'stps'. Did you mean 'steps'?"),
        (["RUN", "--retention", "some"], "retention: expected 'tiers', 'all' or a table"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, capsys, words, message):
    write(tmp_path / "run", 5)
    assert main(["compact", *(str(tmp_path / "run") if word == "RUN" else word for word in words)]) == 2
    assert message in capsys.readouterr().err
