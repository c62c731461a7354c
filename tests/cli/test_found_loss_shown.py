"""A loss that nobody logged, in every place where a loss is shown."""

import json

import numpy as np
import pytest
import torch

import made_runs
import vario
from models import Perceptron, batch
from vario.cli import main
from vario.runs.notebook_html import run_html
from vario.runs.views.status.brief import read_brief
from vario.runs.views.status.losses import read_losses
from vario.runs.views.status.vitals import read_vitals


def shown(capsys, *words):
    assert main(list(words)) == 0
    return capsys.readouterr().out


def trained(path, log=lambda monitor, step, loss: None, steps=30):
    """A tiny training, and the losses it would have printed."""
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    options = {"directory": str(path.parent), "name": path.name, "quantities": ["gradient"], "strict": True}
    with vario.watch(model, optimizer, **options) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            log(monitor, step, loss.item())
    return losses


@pytest.fixture
def unlogged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return trained(tmp_path / "vario_runs" / "unlogged")


def test_a_report_says_that_the_loss_was_found(unlogged, capsys):
    assert "(found by vario)" in shown(capsys, "report", "unlogged")
    loss = json.loads(shown(capsys, "report", "unlogged", "--json"))["loss"]
    assert loss["is_found"] is True
    assert (loss["first"], loss["last"]) == pytest.approx((unlogged[0], unlogged[-1]), rel=1e-5)


def test_a_list_marks_it(unlogged, capsys):
    text = shown(capsys, "ls")
    assert f"{unlogged[-1]:.4g}*" in text
    assert "* found by vario" in text
    (row,) = json.loads(shown(capsys, "ls", "--json"))
    assert row["loss_is_found"] is True
    assert row["loss"] == pytest.approx(unlogged[-1], rel=1e-5)


def test_progress_shows_it_and_says_whose_it_is(unlogged, capsys):
    assert "found by vario" in shown(capsys, "progress", "vario_runs/unlogged")
    assert "训练没有记录损失" in shown(capsys, "progress", "vario_runs/unlogged", "--lang", "zh")
    found = json.loads(shown(capsys, "progress", "vario_runs/unlogged", "--json"))
    assert found["loss"]["last"] == pytest.approx(unlogged[-1], rel=1e-5)
    assert found["loss"]["lowest"] == pytest.approx(min(unlogged), rel=1e-5)


def test_show_knows_it_as_the_loss(unlogged, capsys):
    for words in (("loss", "vario_runs/unlogged"), ("vario_runs/unlogged", "loss")):
        assert "loss_backward (found by vario)" in shown(capsys, "show", *words)
    (curve,) = json.loads(shown(capsys, "show", "loss", "vario_runs/unlogged", "--json"))
    assert curve["values"] == pytest.approx(unlogged, rel=1e-5)


def test_vital_signs_and_notebooks_mark_it(unlogged):
    run = vario.open_run("vario_runs/unlogged")
    loss = read_vitals(run).loss
    assert (loss.target, loss.is_found) == ("loss_backward", True)
    assert loss.value == pytest.approx(unlogged[-1], rel=1e-5)
    brief = read_brief(run)
    assert (brief.loss, brief.loss_is_found) == (pytest.approx(unlogged[-1], rel=1e-5), True)
    assert "loss (found)" in run_html(run)


def test_a_loss_that_somebody_logs_is_the_loss_and_unmarked(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "vario_runs" / "logged", lambda monitor, step, loss: monitor.log(loss=10 * loss))
    run = vario.open_run("vario_runs/logged")
    (loss,) = read_losses(run)
    assert (loss.target, loss.is_found) == ("loss", False)
    np.testing.assert_allclose(loss.values, 10 * run.series("loss_backward", "scalar").values, rtol=1e-5)
    assert "found" not in shown(capsys, "ls") + shown(capsys, "report", "logged") + shown(
        capsys, "progress", "vario_runs/logged"
    )


def test_the_one_number_that_a_trainer_logs_at_its_end_gives_way_to_the_curve(tmp_path):
    path = tmp_path / "run"
    losses = trained(path, lambda monitor, step, loss: monitor.log(train_loss=loss) if step == 29 else None)
    (loss,) = read_losses(vario.open_run(path))
    assert (loss.target, len(loss.values)) == ("loss_backward", len(losses))


def test_on_several_ranks_it_is_their_mean(tmp_path):
    for rank in range(3):
        records = [made_runs.record(step, loss_local=1.0 + rank + step) for step in range(4)]
        made_runs.write_run(tmp_path / "run", records, rank=rank, world_size=3)
    run = vario.open_run(tmp_path / "run")
    (loss,) = read_losses(run)
    assert loss.values.tolist() == [2.0, 3.0, 4.0, 5.0]
    assert read_vitals(run).loss.value == read_brief(run).loss == 5.0


def test_parts_that_are_trained_against_each_other_are_shown_one_by_one(tmp_path, capsys):
    parts = {"loss_backward/critic": 1.0, "loss_backward/actor": -2.0}
    made_runs.write_run(tmp_path / "run", [made_runs.record(step, **parts) for step in range(5)])
    text = shown(capsys, "report", str(tmp_path / "run"))
    assert "loss actor" in text
    assert "loss critic" in text
    vitals = read_vitals(vario.open_run(tmp_path / "run")).vitals
    assert {vital.target for vital in vitals} >= set(parts)
