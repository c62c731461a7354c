"""Two ranks of data parallelism with msrun (`ranks.py`), in PyNative and graph mode."""

import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest

import vario

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="module", params=["pynative", "graph"])
def trained(mindspore, tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("ranks")
    binaries = HERE.parents[2] / ".mindspore" / "bin"
    options = ("--worker_num=2", "--local_worker_num=2", "--master_addr=127.0.0.1", f"--master_port={free_port()}")
    path = os.pathsep.join((str(binaries), os.environ["PATH"]))
    words = ("--join=True", "--log_dir=logs", HERE / "ranks.py", folder, request.param)
    done = mindspore(binaries / "msrun", *options, *words, cwd=folder, PATH=path)
    logs = "".join(file.read_text()[-2000:] for file in (folder / "logs").glob("worker_*.log"))
    assert (folder / "found-1.json").exists(), done.stdout[-2000:] + logs
    return folder


def sums(run, step, quantity, rank):
    """The sum of each target's elements, as one rank recorded it; empty if it did not."""
    if step not in run.steps(quantity, rank=rank):
        return {}
    return {row["target"]: row["sum"] for row in run.frame(step, quantity, rank=rank).to_pylist()}


def test_both_ranks_are_one_run_and_the_first_records_what_both_have(trained):
    run = vario.open_run(trained / "ranks")
    assert (run.state, run.last_step, list(run.ranks)) == ("finished", 5, [0, 1])
    for quantity, recording in (("weight", [True, False]), ("gradient", [True, False]), ("gradient_local", [True] * 2)):
        assert [bool(sums(run, 2, quantity, rank)) for rank in (0, 1)] == recording, quantity
    assert not run.incidents


def test_reduced_gradients_are_the_mean_of_local_ones(trained):
    run = vario.open_run(trained / "ranks")
    for step in range(6):
        first, second = (sums(run, step, "gradient_local", rank) for rank in (0, 1))
        assert (sums(run, step, "gradient_accumulated", 0), sums(run, step, "gradient_accumulated", 1)) == (
            first,
            second,
        )
        for target, total in sums(run, step, "gradient", 0).items():
            assert total == pytest.approx((first[target] + second[target]) / 2, rel=1e-4, abs=1e-6)


def test_replicas_agree(trained):
    first, second = (json.loads((trained / f"found-{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    assert not np.allclose(first["losses"], second["losses"])
    run = vario.open_run(trained / "ranks")
    checksums = sums(run, 0, "checksum", 0)
    # In graph mode the reduced gradients stay inside the graph.
    is_graph = run.structure()["engine"] == "graph"
    assert {name.rpartition(":")[2] for name in checksums} == ({"weight"} if is_graph else {"weight", "gradient"})
    assert len(checksums) == (6 if is_graph else 12)
    assert sums(run, 0, "checksum", 1) == checksums
