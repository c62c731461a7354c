"""An incident on one of two real ranks: all save and stop at the same step, or none does; nobody waits for ever."""

import json
import os
from pathlib import Path

import pytest

from starting import run_ranks
from thorough import thorough

pytestmark = [pytest.mark.slow, thorough]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deciding")
    here = Path(__file__).parent
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(here), str(here.parent)])}
    done = run_ranks([here / "deciding_ranks.py"], cwd=folder, env=variables, ready=["transformers.trainer"])
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, done.stderr


def steps(folder, name):
    return [json.loads((folder / f"{name}-rank{rank}.json").read_text()) for rank in range(2)]


def test_the_trainer_stops_on_all_ranks_when_one_of_them_asks_for_it(launched):
    folder, _ = launched
    first, second = steps(folder, "both")
    assert first == second
    assert 10 <= first < 40
    assert (folder / "both" / "output" / f"checkpoint-{first}").is_dir()


def test_lightning_stops_on_all_ranks_when_one_of_them_asks_for_it(launched):
    folder, _ = launched
    first, second = steps(folder, "lightning")
    assert first == second
    assert 10 <= first < 40
    assert (folder / "lightning" / f"incident-step={first}.ckpt").exists()


def test_a_callback_on_one_rank_alone_stops_nobody_and_hangs_nobody(launched):
    folder, said = launched
    assert steps(folder, "alone") == [40, 40]
    assert "checkpoint and stop after an incident is disabled: not every rank has this callback" in said


def test_the_rank_that_met_it_has_the_snapshot(launched):
    folder, _ = launched
    for name in ("both", "lightning"):
        assert len(list((folder / "runs" / name / "rank1" / "snapshots").glob("*.npz"))) == 1
        assert not (folder / "runs" / name / "rank0" / "snapshots").exists()
