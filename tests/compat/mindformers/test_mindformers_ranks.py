"""Two ranks under DDP, FSDP1 and FSDP2: a folder for each rank, local norms, and norms of the whole."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from monitored import Board

import vario
from starting import run_ranks
from thorough import cases, wanted
from vario.compat.mindformers import write_whole

ENGINES = ["ddp", "fsdp", "fsdp2"]
FIRST = ["ddp", "fsdp2"]
SCRIPT = Path(__file__).with_name("monitored_ranks.py")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("ranks")
    engines = wanted(request, ENGINES, FIRST)
    path = os.pathsep.join([str(SCRIPT.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    done = run_ranks([SCRIPT, folder, *engines], env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder, done.stderr


def seen(folder, rank, what):
    return [step[what] for step in json.loads((folder / f"seen-{rank}.json").read_text())]


@pytest.mark.parametrize("engine", cases(ENGINES, FIRST))
@pytest.mark.parametrize("rank", [0, 1])
def test_local_norms_are_those_of_the_rank_before_reduction(trained, engine, rank):
    folder = trained[0] / engine
    board, expected = Board(folder, rank), seen(folder, rank, "local")
    for name in expected[0]:
        found = list(board.curve(f"local_norm/{name}").values())
        np.testing.assert_allclose(found, [step[name] for step in expected], rtol=2e-5)
    whole = [np.sqrt(sum(value**2 for value in step.values())) for step in expected]
    np.testing.assert_allclose(list(board.curve("device_local_norm").values()), whole, rtol=2e-5)


@pytest.mark.parametrize("engine", cases(ENGINES, FIRST))
@pytest.mark.parametrize(
    ("quantity", "what", "suffix"),
    [("weight", "weights", ""), ("moment", "moments", ":exp_avg"), ("gradient", "reduced", "")],
)
def test_the_run_merges_shards_to_norms_of_the_whole(trained, engine, quantity, what, suffix):
    folder = trained[0] / engine
    run = vario.open_run(folder / "run")
    expected = seen(folder, 0, what)
    for name in expected[0]:
        found = run.series(f"{name}{suffix}", quantity, "norm").values
        np.testing.assert_allclose(found, [step[name] for step in expected][-len(found) :], rtol=2e-5)


@pytest.mark.parametrize("engine", cases(ENGINES, FIRST))
def test_an_event_file_of_the_whole(trained, engine):
    folder = trained[0] / engine
    path = write_whole(vario.open_run(folder / "run"), folder / "board")
    assert path.parent == folder / "board" / "all_ranks"
    board = Board(folder, place="all_ranks")
    for tag, what in (("weight_norm", "weights"), ("grad-norm", "reduced")):
        expected = [np.sqrt(sum(value**2 for value in step.values())) for step in seen(folder, 0, what)]
        found = board.curve(tag)
        np.testing.assert_allclose(list(found.values()), [expected[step - 1] for step in found], rtol=2e-5)
    moments = [step["head.weight"] for step in seen(folder, 0, "moments")]
    np.testing.assert_allclose(list(board.curve("adam_m_norm/head.weight").values()), moments, rtol=2e-5)


@pytest.mark.parametrize("engine", cases(ENGINES, FIRST))
def test_batches_of_all_ranks_count(trained, engine):
    board = Board(trained[0] / engine, 1)
    assert set(board.curve("batch-size").values()) == {8.0}
    assert board.steps("loss-vs-samples") == [8, 16, 24]


def test_only_the_first_rank_logs_steps_and_others_say_who_they_are(trained):
    lines = trained[1].splitlines()
    assert any("[rank 1] step:[    1] local_norm/head.weight" in line for line in lines)
    assert not any("[rank 1] {" in line for line in lines)
    assert any("[rank 0] { step:[    1]" in line for line in lines)
