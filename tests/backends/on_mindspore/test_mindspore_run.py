"""`vario run` on MindSpore scripts that do not know vario (`unchanged.py`), and what refuses to be watched."""

import subprocess
import sys
from pathlib import Path

import pytest

import vario

SCRIPT = Path(__file__).parent / "unchanged.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "words",
    [
        ("loop",),
        pytest.param(("model",), marks=pytest.mark.thorough),
        ("model", "graph"),
        pytest.param(("loop", "graph"), marks=pytest.mark.thorough),
    ],
    ids=" ".join,
)
def test_an_unchanged_script_is_watched_from_its_first_step(mindspore, tmp_path, words):
    vario_run = ("-m", "vario", "run", "--name", "run", "--every", "1")
    done = mindspore(*vario_run, SCRIPT, *words, cwd=tmp_path, MS_DEV_LAUNCH_BLOCKING="0")
    run = vario.open_run(tmp_path / "vario_runs" / "run")
    losses = [float.fromhex(text) for text in done.stdout.split()]
    assert (run.state, run.last_step, list(run.parts_off)) == ("finished", 5, [])
    if words != ("loop", "graph"):  # there the loss is in no call that vario sees
        assert run.series("loss_backward", "scalar").values.tolist() == pytest.approx(losses, rel=1e-7)
    for quantity in ("gradient", "weight", "moment", "activation", "activation_gradient", "update"):
        assert run.steps(quantity).tolist() == list(range(6)), quantity
    targets = {row["target"] for row in run.frame(0, "gradient").to_pylist()}
    assert targets == {"hidden.weight", "hidden.bias", "norm.gamma", "norm.beta", "head.weight", "head.bias"}


REFUSALS = """
import mindspore, sys, vario
from mindspore import nn
from trainings import Net, momentum
def refused(*args, **options):
    try:
        vario.watch(*args, **options)
    except vario.VarioError as error:
        print(type(error).__name__, error)
refused(nn.ReLU())
refused(Net(), momentum(Net()))
refused(Net(), engine="fsdp")
refused(Net(), targets=["hiden"])
import numpy
numpy.__version__ = "2.4.6"
refused(Net())
"""


def test_what_cannot_be_watched_is_refused_in_words(mindspore, tmp_path):
    (tmp_path / "refusals.py").write_text(REFUSALS)
    lines = mindspore("refusals.py", cwd=tmp_path).stdout.splitlines()
    expected = (
        "ModelError watch: ReLU has no parameters, so there is nothing to train or watch",
        "ModelError watch: Momentum has none of the model's parameters. Was the model replaced",
        "ConfigError engine: unknown 'fsdp'. Known: graph, pynative.",
        "ConfigError targets: 'hiden' matches nothing in this model. Did you mean 'hidden'?",
        "UnsupportedRelease watch: MindSpore 2.10.0 does not work with NumPy 2.4.6",
    )
    assert len(lines) == len(expected), lines
    assert all(line.startswith(text) for line, text in zip(lines, expected, strict=True)), lines


def test_the_demo_trains_and_breaks(mindspore, tmp_path):
    done = mindspore("-m", "vario", "demo", "--mindspore", "--steps", "6", cwd=tmp_path)
    assert "one bit of blocks.2.mlp.2.weight was flipped" in done.stderr
    (path,) = (tmp_path / "vario_runs").iterdir()
    run = vario.open_run(path)
    assert (run.state, run.last_step, list(run.parts_off)) == ("finished", 5, [])
    changed = [row["target"] for row in run.frame(3, "unexpected_change").to_pylist()]
    assert changed == ["blocks.2.mlp.2.weight"]


def test_without_mindspore_the_demo_says_what_it_needs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "vario", "demo", "--mindspore", "--steps", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "demo: --mindspore needs MindSpore: pip install mindspore==2.10.0 'numpy<2'" in done.stderr
