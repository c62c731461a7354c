"""`vario ls` as a table of many runs."""

import csv
import io
import json

from vario.cli import main


def shown(capsys, *words):
    assert main(["ls", *map(str, words)]) == 0
    return capsys.readouterr().out


def test_the_best_of_a_sweep_is_the_first_row(capsys, sweep):
    words = (sweep, "--columns", "lr,val_loss:best", "--sort", "val_loss:best")
    listed = json.loads(shown(capsys, *words, "--json"))
    assert len(listed) == 30
    assert [row["val_loss:best"] for row in listed] == sorted(row["val_loss:best"] for row in listed)
    text = shown(capsys, *words).splitlines()
    assert text[0].split() == ["run", "lr", "val_loss:best"]
    assert text[1].split()[0] == listed[0]["name"]


def test_a_filter_and_csv(capsys, sweep):
    where = ("--where", "lr > 0.05 and width = 4")
    text = shown(capsys, sweep, *where, "--sort", "lr desc", "--columns", "lr,act", "--csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["lr"] for row in rows] == ["0.3", "0.3", "0.1", "0.1"]
    assert {row["act"] for row in rows} == {"tanh"}
    assert "4 of 30 runs" in shown(capsys, sweep, *where)


def test_groups(capsys, sweep):
    found = json.loads(shown(capsys, sweep, "--columns", "val_loss:best", "--group-by", "width", "--json"))
    assert [(group["value"], group["runs"]) for group in found] == [("4", 10), ("8", 10), ("16", 10)]
    assert shown(capsys, sweep, "--columns", "val_loss:best", "--group-by", "width").splitlines()[1].startswith("4")


def test_a_wrong_column_is_refused_with_the_closest(capsys, sweep):
    assert main(["ls", str(sweep), "--columns", "val_los:best"]) == 2
    assert "columns: no run has 'val_los:best'. Did you mean 'val_loss'?" in capsys.readouterr().err


def test_what_mattered(capsys, sweep):
    found = json.loads(shown(capsys, sweep, "--effects", "val_loss:best", "--json"))
    assert found[0]["setting"] == "lr"
    assert "Rank correlation -0." in shown(capsys, sweep, "--effects", "val_loss:best").splitlines()[1]
    assert "differ in no setting" in shown(capsys, sweep, "--effects", "loss", "--where", "name = none")
