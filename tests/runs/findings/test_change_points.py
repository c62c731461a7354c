"""The steps at which levels shifted, found over all series of small real trainings."""

import json

import pytest

import vario
from little_trainings import Net, regress, train
from vario.cli import main
from vario.runs.findings.change_points import find_change_points


class Doubled(Net):
    """Twice what it computes from a call on, as if a scale had been changed."""

    def __init__(self, since):
        super().__init__()
        self.calls, self.since = 0, since

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * (4 if self.calls > self.since else 1)


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shifted")
    return vario.open_run(train(folder / "run", steps=140, wrap=lambda net: Doubled(90), lr=0.001))


def test_the_step_and_what_began_there(shifted):
    point = find_change_points(shifted)[0]
    assert point.step == 90
    assert {"scalar", "gradient", "activation"} <= {shift.quantity for shift in point.shifts}
    assert {shift.target for shift in point.shifts if shift.quantity == "scalar"} >= {"loss"}
    for quantity, count, searched in point.counts:
        assert 0 < count <= searched, quantity
    loss = next(shift for shift in point.shifts if shift.target == "loss")
    assert loss.after > 2 * loss.before


def test_series_that_are_watched_rarely_join_those_that_are_not(tmp_path):
    run = vario.open_run(train(tmp_path / "run", steps=400, wrap=lambda net: Doubled(243), lr=1e-4, every=10))
    point = find_change_points(run)[0]
    assert point.step == 243
    seldom = [shift for shift in point.shifts if shift.quantity != "scalar"]
    assert seldom
    for shift in seldom:
        assert shift.unseen_from <= 243 <= shift.step


def test_a_run_without_shifts_has_none(tmp_path):
    assert find_change_points(vario.open_run(train(tmp_path / "run", steps=140, lr=0.0005))) == ()
    assert find_change_points(vario.open_run(train(tmp_path / "short", steps=3))) == ()


def test_the_command_shows_them(shifted, capsys):
    assert main(["changes", str(shifted.path), "--points"]) == 0
    text = capsys.readouterr().out
    assert "90 " in text
    assert "loss " in text
    assert main(["changes", str(shifted.path), "--points", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["points"][0]["step"] == 90
    assert main(["changes", str(shifted.path), "--points", "--quantity", "weight"]) == 2
    assert "--points" in capsys.readouterr().err


def test_a_diagnosis_says_what_else_began(tmp_path):
    def turn(step, y):
        return -2 * y if step >= 70 else y

    found = vario.diagnose(regress(tmp_path / "labels", wanted=turn))
    assert found.began_together is not None
    assert found.began_together.step == 70
    assert "Levels shifted at step 70: " in str(found)
