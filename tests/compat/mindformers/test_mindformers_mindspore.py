"""The callbacks in a real training with `mindspore.train.Model`, in PyNative and graph mode, against numpy."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from monitored import Board

import vario
from starting import MINDSPORE_ENVIRONMENT

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".mindspore"
SCRIPT = Path(__file__).with_name("monitored_mindspore.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    python = ENVIRONMENT / "bin" / "python"
    missing = ENVIRONMENT / "missing.txt"
    if missing.exists() or not python.exists():
        pytest.skip(missing.read_text().strip() if missing.exists() else "there is no .mindspore: run `make mindspore`")
    folder = tmp_path_factory.mktemp("mindspore")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **MINDSPORE_ENVIRONMENT}
    command = [str(python), str(SCRIPT), str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return folder, json.loads((folder / "seen.json").read_text()), done.stderr


@pytest.fixture(scope="module")
def board(trained):
    return Board(trained[0])


def close(curve, expected):
    assert list(curve) == list(range(1, len(expected) + 1))
    np.testing.assert_allclose(list(curve.values()), expected, rtol=1e-5)


def whole(norms):
    return float(np.sqrt(sum(value**2 for value in norms.values())))


def test_losses_are_bit_identical(trained):
    assert trained[1]["watched"] == trained[1]["bare"]
    assert trained[1]["watched_graph"] == trained[1]["bare_graph"]


def test_the_gradient_norm_of_a_training_cell_that_returns_only_the_loss(trained, board):
    expected = [whole(step["gradients"]) for step in trained[1]["steps"]]
    close(board.curve("grad-norm"), expected)
    alone = Board(trained[0] / "alone")
    close(alone.curve("grad-norm"), expected)
    assert alone.tags == {"loss", "learning-rate", "batch-size", "grad-norm"} | {
        f"{tag}-vs-samples" for tag in ("loss", "learning-rate", "batch-size", "grad-norm")
    }


def test_graph_mode_gives_the_same(trained):
    graph, board = Board(trained[0] / "graph"), Board(trained[0] / "pynative")
    assert {"grad-norm", "local_norm/head.weight", "adam_m_norm/head.weight", "weight_norm"} <= graph.tags
    assert graph.tags == board.tags
    for tag in board.tags:
        assert graph.steps(tag) == board.steps(tag), tag
        if not tag.startswith(("iteration-time", "throughput", "B-samples")):
            found, expected = list(graph.curve(tag).values()), list(board.curve(tag).values())
            np.testing.assert_allclose(found, expected, rtol=1e-4, err_msg=tag)


def test_step_numbers(trained, board):
    steps = trained[1]["steps"]
    close(board.curve("loss"), [step["loss"] for step in steps])
    close(board.curve("learning-rate"), [0.01] * len(steps))
    close(board.curve("batch-size"), [4.0] * len(steps))
    assert board.steps("loss-vs-samples") == [4, 8, 12, 16, 20, 24]
    milliseconds = np.array(list(board.curve("iteration-time").values()))
    np.testing.assert_allclose(list(board.curve("throughput").values()), 4e3 / milliseconds, rtol=1e-5)


@pytest.mark.parametrize("name", ["layers.1.weight", "layers.1.bias", "head.weight"])
def test_state_of_chosen_parameters(trained, board, name):
    steps = trained[1]["steps"]
    close(board.curve(f"local_norm/{name}"), [step["gradients"][name] for step in steps])
    close(board.curve(f"adam_m_norm/{name}"), [step["m"][name] for step in steps])
    close(board.curve(f"adam_v_norm/{name}"), [step["v"][name] for step in steps])


def test_state_of_the_device(trained, board):
    steps = trained[1]["steps"]
    close(board.curve("device_local_norm"), [whole(step["gradients"]) for step in steps])
    close(board.curve("weight_norm"), [whole(step["weights"]) for step in steps])
    close(board.curve("local_loss"), [step["loss"] for step in steps])
    close(board.curve("device_accum_local_loss"), [step["loss"] for step in steps])
    assert board.steps("throughput_linearity") == list(range(1, len(steps) + 1))


def test_layer_10_is_not_layer_1(board):
    assert not any("layers.10" in tag for tag in board.tags)


def test_the_load_of_each_expert(trained, board):
    steps = trained[1]["steps"]
    for expert in range(3):
        [tag] = [tag for tag in board.tags if tag.startswith("expert_load/") and tag.endswith(f"router/ep_{expert}")]
        close(board.curve(tag), [step["load"][expert] / 4 for step in steps])


def test_all_callbacks_write_one_event_file_with_the_configuration(trained, board):
    assert len(list(board.folder.iterdir())) == 1
    assert board.texts["seed"] == "1"
    assert json.loads(board.texts["monitor_config"])["target"] == ["layers.1", "head"]


def test_the_run_has_the_same_numbers(trained, board):
    run = vario.open_run(trained[0] / "run")
    for tag in ("throughput", "device_local_norm", "weight_norm", "loss", "learning-rate"):
        close(board.curve(tag), run.series(tag, "scalar").values)
    close(board.curve("local_norm/head.bias"), run.series("head.bias", "gradient_accumulated", "norm").values)


def test_the_same_from_a_file(trained, board):
    found = Board(trained[0] / "from_file")
    assert found.steps("loss") == [2, 4, 6]
    assert found.curve("weight_norm") == board.curve("weight_norm")


def test_print_struct_lists_parameters_and_stops(trained):
    assert trained[1]["num_listed"] <= 1
    assert "print_struct: 24 trainable parameters" in trained[2]
    assert "* layers.1.weight  6x6  float32" in trained[2]


def test_the_log_tells_of_each_step(trained):
    assert "{ Epoch:[  1/  1], step:[    6/    6], loss:[" in trained[2]
    assert "Epoch:[  1/  1], step:[    6/    6] local_norm/head.weight: " in trained[2]


ORIGINAL = json.loads(Path(__file__).with_name("original.json").read_text())
"""What mindformers 2.1.0 writes about the same training; made_with_original.py says how it was made."""


@pytest.fixture(scope="module")
def beside(trained):
    return Board(trained[0] / "original")


def ours(tag):
    """Our name of a tag there: twins as documented, experts in the same file."""
    folder, _, name = tag.rpartition(": ")
    return folder or name.replace("_vs_samples", "-vs-samples")


def test_the_tags_are_those_of_the_original(beside):
    assert beside.tags == {ours(tag) for tag in ORIGINAL["curves"]}


@pytest.mark.parametrize("tag", ORIGINAL["curves"])
def test_the_values_are_those_of_the_original(beside, tag):
    points = ORIGINAL["curves"][tag]
    curve = beside.curve(ours(tag))
    assert list(curve) == [step for step, _ in points]
    if points[0][1] is not None:  # times are those of another machine
        np.testing.assert_allclose(list(curve.values()), [value for _, value in points], rtol=1e-5)


def test_the_original_has_a_file_for_each_expert(beside):
    assert ORIGINAL["num_event_files"] == 1 + 3
    assert len(list(beside.folder.rglob("events.*"))) == 1
