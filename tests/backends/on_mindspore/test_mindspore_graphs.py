"""Graph mode: probes that are compiled into the step and switched at run time (`graph_trainings.py`)."""

import json
from pathlib import Path

import numpy as np
import pytest

import vario
from vario.core.records import COLUMNS

HERE = Path(__file__).parent
CELLS = ("root", "hidden", "act", "norm", "head")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(mindspore, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    mindspore(HERE / "graph_trainings.py", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def found(trained):
    return json.loads((trained / "found.json").read_text())


def rows(run, step, quantity):
    return {row["target"]: [row[column] for column in COLUMNS] for row in run.frame(step, quantity).to_pylist()}


def test_losses_are_bit_identical_watched_and_not(trained, found):
    assert found["graph"] == found["split"] == found["alone"]
    run = vario.open_run(trained / "graph")
    np.testing.assert_allclose(run.series("loss_backward", "scalar").values, found["alone"], rtol=1e-7)
    assert (run.state, run.last_step, list(run.parts_off)) == ("finished", 5, [])


def test_probes_are_switched_without_compiling_again_and_stay_out_of_checkpoints(trained, found):
    assert found["graphs"] == 1
    assert not [name for name in found["parameters"] if "vario" in name]
    run = vario.open_run(trained / "graph")
    for quantity in ("gradient", "gradient_local", "weight", "moment", "activation", "activation_gradient", "update"):
        assert run.steps(quantity).tolist() == [0, 2, 4], quantity


def test_a_compiled_step_and_a_split_one_show_the_same(trained):
    whole, split = (vario.open_run(trained / name) for name in ("graph", "split"))
    for step in (0, 2, 4):
        for quantity in ("gradient", "weight", "moment", "activation", "activation_gradient", "update"):
            seen, other = rows(whole, step, quantity), rows(split, step, quantity)
            assert sorted(seen) == sorted(other)
            for target, row in seen.items():
                np.testing.assert_allclose(row, other[target], rtol=1e-5, atol=1e-6, err_msg=f"{quantity} {target}")
        assert set(rows(whole, step, "activation")) == {f"{cell}:output" for cell in CELLS}


def test_what_graph_mode_cannot_give_is_listed(trained):
    run = vario.open_run(trained / "graph")
    lacking = {one.quantity: one.missing for one in run.not_offered}
    assert lacking["gradient_applied"] == "applied gradients"
    assert lacking["scalar:PassTime"] == "device clock"


def test_probes_that_never_ran_are_named(trained):
    (told,) = [line for line in (trained / "log.txt").read_text().splitlines() if "no values came" in line]
    assert "'activation of root', 'activation of hidden'" in told
    assert "call vario.watch before the first step" in told
    late = vario.open_run(trained / "late")
    assert late.last_step == 1
    assert late.steps("weight").tolist() == [0, 1]
