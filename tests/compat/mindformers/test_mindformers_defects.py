"""What the original gets wrong, done right here: each known defect is a test."""

import json
import logging
import math

import numpy as np
import pytest
import torch
from monitored import Board, Tower, content, said, train

from vario.compat.mindformers import load_yaml
from vario.compat.mindformers.lines import Place, value_line
from vario.compat.mindformers.matching import Targets
from vario.compat.mindformers.report import Report
from vario.core.errors import ConfigError


def test_no_step_is_lost_when_several_are_pending(tmp_path, monkeypatch):
    """There, reporting one late step empties the folder and so deletes the numbers of the next one."""
    monkeypatch.chdir(tmp_path)
    steps = 40  # many more than the writer takes at once
    train(load_yaml(content(tmp_path)), steps=steps, rows=1)
    lines = (tmp_path / "dump" / "rank_0" / "values.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, steps + 1))
    assert Board(tmp_path).steps("local_norm/head.weight") == list(range(1, steps + 1))


def test_what_lies_in_the_dump_folder_stays(tmp_path, monkeypatch):
    """There, the folder of the rank is emptied without a look."""
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "dump" / "rank_0" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    train(load_yaml(content(tmp_path)), steps=2)
    train(load_yaml(content(tmp_path)), steps=2)
    assert mine.read_text() == "mine"
    assert len(mine.with_name("values.jsonl").read_text().splitlines()) == 4


def test_the_x_axis_goes_on_after_a_resume(tmp_path, monkeypatch):
    """There, TensorBoard's points of the state begin at 1 again after each restart."""
    monkeypatch.chdir(tmp_path)
    train(load_yaml(content(tmp_path), name="run"), steps=3)
    train(load_yaml(content(tmp_path), name="run", resume=True), steps=2)
    board = Board(tmp_path)
    for tag in ("local_norm/head.weight", "weight_norm", "loss", "adam_m_norm/head.weight"):
        assert board.steps(tag) == [1, 2, 3, 4, 5], tag
    assert board.steps("loss-vs-samples") == [5, 10, 15, 20, 25]


def test_the_offset_of_the_file_counts_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"initial_epoch": 1, "initial_step": 2, "dataset_size": 10, "origin_epochs": 2}
    with said() as lines:
        train(load_yaml(content(tmp_path, loss_monitor=given)), steps=2)
    assert Board(tmp_path).steps("local_norm/head.weight") == Board(tmp_path).steps("loss") == [13, 14]
    assert any(line.startswith("Epoch:[  2/  2], step:[    3/   10] local_norm/head.weight") for line in lines)


def test_a_missing_gradient_norm_or_loss_scale_is_left_out(tmp_path):
    """There, None or the text 'unavailable' reaches TensorBoard's writer, which raises and ends the training."""
    settings = load_yaml(content(tmp_path)).settings
    report = Report(settings)
    with said() as lines:
        report.step(1, {"loss": 2.0, "grad-norm": None, "loss-scale": None, "iteration-time": 5.0}, False, 0.0)
        report.step(2, {"loss": math.nan, "grad-norm": math.inf}, False, 0.0)
        report.step(3, {}, False, 0.0)
    report.close()
    board = Board(tmp_path)
    assert board.steps("grad-norm") == [2]
    assert board.curve("grad-norm")[2] == math.inf
    assert math.isnan(board.curve("loss")[2])
    assert "loss-scale" not in board.tags
    assert "loss_scale: unavailable" in lines[0]


def test_a_parameter_without_a_gradient_does_no_harm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = Tower(2)
    model.unused = torch.nn.Linear(2, 2)
    train(load_yaml(content(tmp_path)), model, steps=2)
    board = Board(tmp_path)
    assert board.steps("local_norm/head.weight") == [1, 2]
    assert "local_norm/unused.weight" not in board.tags


NAMES = [f"model.layers.{number}.{part}.weight" for number in range(12) for part in ("attention", "norm1", "norm10")]


@pytest.mark.parametrize(
    ("entry", "layers"),
    [
        ("layers.1", {1}),
        ("layers.1.", {1}),
        (r"layers\.1", {1}),
        ("layers.10", {10}),
        (r"layers\.\d+", set(range(12))),
        (r"layers\.[01]\.", {0, 1}),
        (r"layers\.(0|11)", {0, 11}),
        (".*", set(range(12))),
        ("ayers.3", {3}),
        ("^layers", set()),
    ],
)
def test_a_number_is_not_split(entry, layers):
    """There, `layers.1` also selects layers 10 to 19."""
    chosen = Targets((entry,)).chosen(NAMES)
    assert {int(name.split(".")[2]) for name in chosen} == layers


def test_pieces_of_names_match_anywhere():
    assert Targets(("norm1",)).choose("layers.0.norm1.weight")
    assert not Targets(("norm1",)).choose("layers.0.norm10.weight")
    assert Targets(("att",)).choose("layers.0.attention.weight")
    assert Targets(("att",), invert=True).choose("layers.0.norm.weight")


def test_a_star_is_refused_before_training(tmp_path):
    """There, it raises in the middle of training, although the docs name it as the default."""
    with pytest.raises(ConfigError, match=r"monitor_config.target: '\*' is not a regular expression.*Write '\.\*'"):
        load_yaml(content(tmp_path, {"target": ["*"]}))


def test_a_target_without_a_match_is_told_and_trains(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.WARNING, "vario"):
        train(load_yaml(content(tmp_path, {"target": ["head", "decoder"]})), steps=1)
    assert "monitor_config.target: 'decoder' matches no trainable parameter of this rank" in caplog.text


def test_repeated_lines_are_all_logged(tmp_path):
    """There, the logger drops a message after ten repeats, so a frozen number disappears."""
    report = Report(load_yaml(content(tmp_path)).settings)
    with said() as lines:
        for _ in range(30):
            report.state(1, {"weight_norm": 1.0}, frozenset({"log"}), 0.0)
    report.close()
    assert lines == [value_line(Place(1), "weight_norm", 1.0)] * 30


def test_stable_rank_takes_a_format_as_text_and_leaves_random_numbers_alone(tmp_path, monkeypatch):
    """There, text crashes on its first letter, and the random start vector changes the training's random numbers."""
    monkeypatch.chdir(tmp_path)
    ranks = {"stable_rank_config": {"format": "tensorboard", "step_interval": 1}}
    _, watched = train(load_yaml(content(tmp_path, ranks)), steps=3)
    _, bare = train(None, steps=3, enabled=False)
    assert [step["losses"] for step in watched] == [step["losses"] for step in bare]
    values = np.linalg.svd(watched[0]["weights"]["head.weight"], compute_uv=False)
    found = Board(tmp_path).curve("weight_stable_rank/head.weight")
    assert found[2] == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-4)


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "board").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=r"tensorboard.tensorboard_dir: '.*rank_0' cannot be written: Not a dir"):
        train(load_yaml(content(tmp_path)), steps=3)


def test_a_dump_folder_that_cannot_be_written_is_told_once(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING, "vario"):
        train(load_yaml(content(tmp_path)), steps=3)
    assert [record.getMessage() for record in caplog.records if "dump_path" in record.getMessage()][1:] == []
    assert "monitor_config.dump_path" in caplog.text
    assert Board(tmp_path).steps("weight_norm") == [1, 2, 3]
