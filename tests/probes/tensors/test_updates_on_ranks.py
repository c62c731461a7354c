"""Updates and unexpected changes on two real ranks, against one process that trains on both batches."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from models import Perceptron, batch
from releases import runs_here, skip_unless_it_runs
from starting import run_ranks
from thorough import cases, wanted
from vario import open_run
from watching import rows, watch

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
STEPS = 5
SHARDED = ["fsdp1", "fsdp2"]
CASES = ["ddp", "ddp-zero", *SHARDED]
FIRST = ["ddp", "fsdp2", "ddp-flip"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("updates")
    paths = [str(HERE.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    words = [HERE / "updates_script.py", *filter(runs_here, wanted(request, CASES, FIRST)), "ddp-flip"]
    done = run_ranks(words, cwd=place, env=variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-5000:]
    return place / "runs"


@pytest.fixture(scope="module")
def alone():
    """{(step, target): Summary} of one process that trains on the batches of both ranks."""
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-6)
    with watch(model, optimizer, ["update"]) as monitor:
        for step in range(STEPS):
            optimizer.zero_grad()
            losses = [model(batch(2 * step + rank)).square().mean() for rank in range(2)]
            (sum(losses) / 2).backward()
            optimizer.step()
    return {(key[0], key[3]): row for key, row in rows(monitor, "update").items()}


def recorded(folder, case, quantity="update", rank="all"):
    """{(step, target): (count, norm)}"""
    skip_unless_it_runs(case)
    run = open_run(folder / case)
    if quantity not in run.quantities(rank):
        return {}
    found = {}
    for target in run.targets(quantity, rank=rank):
        counts, norms = (run.series(target, quantity, statistic, rank=rank) for statistic in ("count", "norm"))
        for step, count, norm in zip(counts.steps, counts.values, norms.values, strict=True):
            found[int(step), target] = count, norm
    return found


@pytest.mark.parametrize("case", cases(CASES, FIRST))
def test_ranks_together_have_the_changes_and_surprises_of_one_process(folder, alone, case):
    found = recorded(folder, case)
    whole = [key for key in alone if key[1].split(":")[1] in ("change", "grad_vs_second_moment")]
    assert {key for key in found if key[1].split(":")[1] in ("change", "grad_vs_second_moment")} == set(whole)
    for key in whole:
        count, _, squares = alone[key][:3]
        assert found[key][0] == count, key
        np.testing.assert_allclose(found[key][1], np.sqrt(squares), rtol=2e-3, err_msg=str(key))


@pytest.mark.parametrize("case", cases(["ddp", "ddp-zero"], FIRST))
def test_what_ranks_hold_alike_has_the_ratios_of_one_process(folder, alone, case):
    found = recorded(folder, case)
    assert found.keys() == alone.keys()
    for key, row in alone.items():
        np.testing.assert_allclose(found[key][1], np.sqrt(row[2]), rtol=2e-3, err_msg=str(key))


@pytest.mark.parametrize("case", cases(SHARDED, FIRST))
def test_each_rank_measures_its_own_share(folder, case):
    per_rank = [recorded(folder, case, rank=rank) for rank in range(2)]
    sizes = [
        sum(count for (step, name), (count, _) in one.items() if step == 0 and "change" in name) for one in per_rank
    ]
    assert sum(sizes) == sum(parameter.numel() for parameter in Perceptron().parameters())
    assert min(sizes) > 0
    assert any(name.endswith("ratio") for _, name in per_rank[1])


@pytest.mark.parametrize("case", cases(CASES, FIRST))
def test_healthy_ranks_have_no_stray_changes(folder, case):
    assert recorded(folder, case, "unexpected_change") == {}


def test_a_change_on_one_rank_is_found_on_that_rank(folder):
    assert recorded(folder, "ddp-flip", "unexpected_change", rank=0) == {}
    assert recorded(folder, "ddp-flip", "unexpected_change", rank=1) == {(3, "up.weight"): (32, pytest.approx(1.0))}


def test_ranks_with_the_same_batch_have_the_same_checksum_and_others_do_not(folder):
    checksums = {
        case: [open_run(folder / case).series("batch_checksum", "scalar", rank=rank).values for rank in range(2)]
        for case in ("ddp", "ddp-flip")
    }
    assert (checksums["ddp-flip"][0] == checksums["ddp-flip"][1]).all()
    assert (checksums["ddp"][0] != checksums["ddp"][1]).all()
