"""The callbacks on two ranks of MindSpore's data parallelism: local norms before reduction, a folder for each rank."""

import json
import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest
from monitored import Board

import vario
from starting import MINDSPORE_ENVIRONMENT

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".mindspore"
SCRIPT = Path(__file__).with_name("monitored_msrun.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    launcher = ENVIRONMENT / "bin" / "msrun"
    missing = ENVIRONMENT / "missing.txt"
    if missing.exists() or not launcher.exists():
        pytest.skip(missing.read_text().strip() if missing.exists() else "there is no .mindspore: run `make mindspore`")
    folder = tmp_path_factory.mktemp("msrun")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join(map(str, (ROOT / "src", SCRIPT.parent)))
    programs = os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ["PATH"]])
    environment = {**os.environ, "PYTHONPATH": path, "PATH": programs, **MINDSPORE_ENVIRONMENT}
    options = ["--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1", f"--master_port={port}"]
    # The launcher is a script with the path of its first home.
    starts = [
        str(ENVIRONMENT / "bin" / "python"),
        str(launcher),
        *options,
        "--join=True",
        f"--log_dir={folder / 'logs'}",
    ]
    done = subprocess.run(
        [*starts, str(SCRIPT), str(folder)], cwd=folder, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_its_own_local_norms(trained, rank):
    seen = json.loads((trained / f"seen-{rank}.json").read_text())
    board = Board(trained, rank)
    for name, expected in seen["local"].items():
        assert board.curve(f"local_norm/{name}")[1] == pytest.approx(expected, rel=1e-5)
    whole = np.sqrt(sum(value**2 for value in seen["local"].values()))
    assert board.curve("device_local_norm")[1] == pytest.approx(whole, rel=1e-5)
    assert board.curve("weight_norm")[3] == pytest.approx(seen["weight_norm"], rel=1e-5)


def test_ranks_differ_before_reduction_and_agree_after_the_update(trained):
    first, second = Board(trained, 0), Board(trained, 1)
    assert first.curve("device_local_norm") != second.curve("device_local_norm")
    assert first.curve("weight_norm") == second.curve("weight_norm")


def test_batches_of_both_ranks_count(trained):
    assert set(Board(trained, 1).curve("batch-size").values()) == {8.0}


def test_both_ranks_are_in_one_run(trained):
    run = vario.open_run(trained / "run")
    assert run.ranks == [0, 1]
    assert run.series("head.weight", "weight", "norm").values.shape == (3,)
