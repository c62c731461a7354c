"""Two ranks under DDP: local and reduced gradients, and which rank writes what all ranks have."""

import json
import os
from pathlib import Path

import pytest
import reading

from starting import run_ranks
from thorough import cases, thorough

HERE = Path(__file__).parent
CONFIG = {"wg_distribution": True, "ops": ["norm"], "ndigits": 12}


def train(tmp_path, config=CONFIG, steps=2, **job):
    out = tmp_path / "out"
    out.mkdir()
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(config))
    arguments = json.dumps({"config": str(path), "steps": steps, **job})
    environment = {**os.environ, "MONITOR_OUTPUT_DIR": str(out), "OMP_NUM_THREADS": "1"}
    done = run_ranks([HERE / "distributed_training.py", arguments], env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return out


def norms(out, prefix, rank, name="module.up.weight"):
    return [float(row["norm"]) for row in reading.rows(out, prefix, rank) if row["name"] == name]


@pytest.mark.parametrize("bucket_view", cases([False, True], [True]))
def test_unreduced_gradients_are_each_ranks_own_and_reduced_ones_are_shared(tmp_path, bucket_view):
    out = train(tmp_path, bucket_view=bucket_view)
    for rank in (0, 1):
        expected = json.loads((out / f"local-{rank}.json").read_text())
        assert norms(out, "grad_unreduced", rank) == pytest.approx(expected, rel=1e-5)
    assert norms(out, "grad_reduced", 0) == norms(out, "grad_reduced", 1)
    assert norms(out, "grad_unreduced", 0) != norms(out, "grad_unreduced", 1)


@thorough
def test_with_a_dp_group_only_its_first_rank_writes_reduced_gradients(tmp_path):
    out = train(tmp_path, group="dp_group")
    assert reading.steps(out, "grad_reduced", 0) == [0, 1]
    assert reading.steps(out, "grad_reduced", 1) == []
    assert reading.steps(out, "grad_unreduced", 1) == [0, 1]


@thorough
def test_with_a_tp_group_other_ranks_write_only_what_is_split(tmp_path):
    out = train(tmp_path, group="tp_group")
    names = [{row["name"] for row in reading.rows(out, "grad_reduced", rank)} for rank in (0, 1)]
    assert names[0] == {f"module.{layer}.{kind}" for layer in ("up", "down") for kind in ("weight", "bias")}
    assert names[1] == {"module.up.weight"}


@thorough
def test_only_the_ranks_in_module_ranks_write(tmp_path):
    out = train(tmp_path, {**CONFIG, "module_ranks": [1]})
    assert ["-rank1-" in path.name for path in out.glob("*rank*")] == [True]
    assert reading.steps(out, "grad_reduced", 1) == [0, 1]
