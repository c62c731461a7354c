"""The demo, short: a real training run on the CPU, through the command."""

import json
import re
import signal
import socket
import subprocess
import sys

import pytest

import vario
from thorough import thorough
from vario.cli import main
from vario.demo import DEPTH, WIDTH, documentation, flip_exponent_bit, make_model


def test_it_learns_from_the_documentation():
    assert "# The run folder" in documentation()


def test_the_model_has_about_a_million_parameters():
    num_parameters = sum(parameter.numel() for parameter in make_model(90).parameters())
    assert 12 * WIDTH**2 * DEPTH < num_parameters < 1.1e6


def test_no_time_to_train_is_refused(capsys):
    assert main(["demo", "--steps", "0"]) == 2
    assert "greater than 0" in capsys.readouterr().err


def test_a_flipped_exponent_bit_makes_one_element_huge():
    weight = make_model(90).blocks[2].mlp[2].weight
    before = weight.detach().clone().view(-1)
    flip_exponent_bit(weight)
    after = weight.detach().view(-1)
    assert abs(after[0]) > 1e30
    assert (after[1:] == before[1:]).all()


@pytest.mark.slow
def test_the_demo_ends_with_the_tensor_that_went_bad_first(run_folder, capsys):
    assert main(["demo", "--steps", "30"]) == 0
    captured = capsys.readouterr()
    assert "one bit of blocks.2.mlp.2.weight was flipped" in captured.err
    assert "First NaN or Inf: blocks.3.attention_norm:output (activation)" in captured.out
    (run,) = vario.list_runs("vario_runs")
    assert run.state == "finished"
    onset = vario.first_bad(run)
    assert (onset.step, onset.quantity, onset.target) == (15, "activation", "blocks.3.attention_norm:output")
    assert onset.inputs_were_finite
    assert f"vario report {run.path}" in captured.out

    assert main(["report", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["jump"]["target"] == "blocks.2.mlp.2:output"
    assert report["loss"]["last"] == "nan"


@thorough
@pytest.mark.slow
def test_left_whole_the_model_learns(run_folder, capsys):
    assert main(["demo", "--steps", "12", "--no-fault", "--directory", "elsewhere"]) == 0
    assert "Healthy" in capsys.readouterr().out
    loss = vario.open_run("elsewhere").series("loss", "scalar").values
    assert len(loss) == 12
    assert loss[-1] < loss[0] - 0.5


def test_a_dashboard_ends_with_the_demo_that_opened_it(tmp_path):
    command = [sys.executable, "-m", "vario", "demo", "--serve", "--seconds", "300"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        printed = next(line for line in demo.stdout if "http://" in line)
        port = int(re.search(r":(\d+)/", printed)[1])
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            demo.terminate()
        assert demo.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
