"""Summaries of very many runs are stored beside them, and count only while a run is as it was."""

import json
import os
import shutil

import pytest

from vario.cli import main
from vario.runs.notes.beside import FOLDER
from vario.runs.table.summary_file import FILE, LEAST_NEW


@pytest.fixture
def runs(sweep, tmp_path):
    """As many runs as are worth a file."""
    for at in range(LEAST_NEW):
        shutil.copytree(sweep / "lr0.1-w4-s0", tmp_path / "runs" / f"run{at:02}")
    return tmp_path / "runs"


def listed(runs, capsys):
    """The best validation loss of each run, as `vario ls` prints it."""
    assert main(["ls", str(runs), "--columns", "lr,val_loss:best,memory", "--json"]) == 0
    return {row["run"]: row for row in json.loads(capsys.readouterr().out)}


def lose_the_numbers(run):
    """Nothing at the top of the run shows it."""
    for part in (run / "rank0" / "scalar").iterdir():
        part.unlink()


def test_a_run_that_has_not_changed_is_not_read_again(runs, capsys):
    before = listed(runs, capsys)
    assert (runs / FOLDER / FILE).exists()
    lose_the_numbers(runs / "run07")
    assert listed(runs, capsys) == before


def test_a_run_that_has_changed_is_read_again(runs, capsys):
    before = listed(runs, capsys)
    lose_the_numbers(runs / "run07")
    os.utime(runs / "run07" / "run.json", (1, 1))
    (runs / "run08").rename(runs / "other")
    after = listed(runs, capsys)
    assert after["run07"]["val_loss:best"] is None
    assert after["run09"] == before["run09"]
    assert "run08" not in after
    assert after["other"]["val_loss:best"] == before["run08"]["val_loss:best"]


def test_a_few_runs_leave_nothing_beside_them(runs, capsys):
    shutil.rmtree(runs / "run00")
    listed(runs, capsys)
    assert not (runs / FOLDER).exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:1000],
        lambda text: "[" * 100_000,
        lambda text: text.replace('"started": ', '"started": "x", "was": '),
        lambda text: text.replace('"val_loss": [', '"val_loss": ["x", '),
        lambda text: text.replace('"format": 1', '"format": 2'),
        lambda text: text.replace('"state": "finished"', '"state": "running"'),
        lambda text: text.replace('"params": {', '"params": [], "was": {'),
        lambda text: '{"format": 1, "runs": []}',
    ],
)
def test_a_damaged_file_is_read_past_and_replaced(runs, capsys, damage):
    before = listed(runs, capsys)
    file = runs / FOLDER / FILE
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    assert listed(runs, capsys) == before
    assert json.loads(file.read_text()) == json.loads(text)


def test_a_link_is_neither_read_nor_written_through(runs, capsys, tmp_path):
    target = tmp_path / "elsewhere"
    target.mkdir()
    (runs / FOLDER).symlink_to(target)
    assert len(listed(runs, capsys)) == LEAST_NEW
    assert list(target.iterdir()) == []


def test_a_server_uses_it_and_a_read_only_one_does_not_write_it(serve, runs, capsys):
    with serve(runs) as client:
        client.get("/api/table", column=["val_loss:best"])
    assert not (runs / FOLDER).exists()
    with serve(runs, is_writable=True) as client:
        before = client.get("/api/table", column=["val_loss:best", "steps_per_second"])
    assert (runs / FOLDER / FILE).exists()
    lose_the_numbers(runs / "run07")
    with serve(runs) as client:
        assert client.get("/api/table", column=["val_loss:best", "steps_per_second"]) == before
        rows = {row["run"]: row for row in client.get("/api/runs")["runs"]}
        assert rows["run07"]["spark"] == rows["run08"]["spark"] != []
