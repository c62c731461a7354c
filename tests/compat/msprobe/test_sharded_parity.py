"""msprobe and vario on the same two ranks, under DDP, FSDP1 and FSDP2: the files before and after reduction."""

import json
import os
from pathlib import Path

import pytest
import reading

from starting import run_ranks
from thorough import cases, wanted

pytestmark = pytest.mark.slow

ENGINES = ["ddp", "fsdp", "fsdp2"]
FIRST = ["fsdp2"]
CONFIG = {
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "ops": ["min", "max", "norm", "mean", "zeros", "nans"],
    "ndigits": 12,
}
SCRIPT = Path(__file__).with_name("sharded_training.py")


def train(place, home, engines, environment):
    config = place / "monitor.json"
    config.write_text(json.dumps(CONFIG))
    config.chmod(0o640)  # msprobe reads no file that others may write
    done = run_ranks([SCRIPT, home, config, place, *engines], env={**environment, "OMP_NUM_THREADS": "1"}, ready=[home])
    assert done.returncode == 0, done.stderr[-4000:]
    return place


@pytest.fixture(scope="module")
def ours(tmp_path_factory, request):
    engines = wanted(request, ENGINES, FIRST)
    return train(tmp_path_factory.mktemp("ours"), "vario.compat.msprobe", engines, os.environ)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, peer, request):
    place = tmp_path_factory.mktemp("theirs")
    for engine in wanted(request, ENGINES, FIRST):  # msprobe takes nothing back: a process for each
        train(place, "msprobe.pytorch", [engine], peer("26.2.0"))
    return place


@pytest.mark.parametrize("engine", cases(ENGINES, FIRST))
@pytest.mark.parametrize("kind", ["grad_unreduced", "grad_reduced", "param_origin", "param_updated", "exp_avg"])
def test_the_files_of_both_say_the_same(ours, theirs, engine, kind):
    for rank in (0, 1):
        found, expected = (
            {(row["name"], row["step"]): row for row in reading.rows(place / engine, kind, rank)}
            for place in (ours, theirs)
        )
        assert found.keys() == expected.keys()
        assert found
        for key, row in expected.items():
            assert found[key].keys() == row.keys()
            for column in ("shape", "dtype", "vpp_stage"):
                assert found[key][column] == row[column], (key, column)
            for column in CONFIG["ops"]:
                is_shared_out = engine == "fsdp2" and not kind.startswith("grad") and key[0].startswith("down")
                if column == "mean" and is_shared_out:
                    continue  # of what does not divide evenly msprobe lets the ranks compute the mean of the whole
                assert float(found[key][column]) == pytest.approx(float(row[column]), rel=1e-6, abs=1e-9), (key, column)
