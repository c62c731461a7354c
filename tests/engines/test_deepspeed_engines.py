"""Trainings on two real ranks through every stage of DeepSpeed, against one process."""

import copy
import csv
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import HELD, Oracle, check_accumulated, check_held, check_local, check_target, open_case, torchrun

from thorough import cases, thorough, wanted

pytestmark = pytest.mark.slow

PACKAGES = Path(__file__).parents[2] / ".peers" / "engines"
PLAIN = ["zero0", "zero0-x2", "zero1", "zero1-x2-groups", "zero2", "zero2-x2-base", "zero3", "zero3-x2-groups-small"]
HALF = ["zero0-bf16", "zero1-bf16-x2", "zero1-bf16-fp32sum", "zero3-bf16-x2"]
OTHER = ["zero2-groups-bare-scattered", "zero2-buckets-scaled-alone-x2-direct", "zero2-offload"]
OTHER += ["zero3-persistent-buckets-scaled-bare"]
RESUMED = ["zero3-alone"]
CASES = [*PLAIN, *HALF, *OTHER, *RESUMED]
SKIPPED = ["zero0-bf16-skip", "zero1-skip", "zero3-x2-skip"]
LOOSE = "zero2-offload-x2-loose"
COUNTED = ["zero1-x2-groups", "zero3"]
MSPROBE = "zero2-groups"
READY = ["deepspeed", "vario"]
FIRST = ["zero0", "zero1-x2-groups", "zero2", "zero3", "zero0-bf16", "zero1-skip", "count:zero3"]


def environment():
    if not PACKAGES.is_dir():
        pytest.fail(f"DeepSpeed is not there ({PACKAGES}): run `make peers`")
    paths = (PACKAGES, Path(__file__).parent, Path(__file__).parents[1])
    return {"DS_ACCELERATOR": "cpu", "PYTHONPATH": os.pathsep.join(map(str, paths))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("deepspeed")
    arguments = [*PLAIN, *HALF, *OTHER, *SKIPPED, LOOSE, "early:zero2"]
    arguments += [f"resume:{case}" for case in RESUMED] + [f"count:{case}" for case in COUNTED]
    arguments.append(f"msprobe:{MSPROBE}")
    torchrun(place, "deepspeed_engines.py", *wanted(request, arguments, FIRST), environment=environment(), ready=READY)
    return place


_oracles = {}


def oracle_of(case, zeros=("spare.weight", "spare.bias")):
    """One process. DeepSpeed gives what nobody uses gradients of zero; no backward pass does."""
    stage, *traits = case.split("-")
    options = {
        "accumulation": 2 if "x2" in traits else 1,
        "dtype": torch.bfloat16 if "bf16" in traits else torch.float32,
        "zeros": zeros,
        "groups": 2 if "groups" in traits else 1,
        "rounded": "bf16" in traits,  # the master copies are made of the rounded parameters
        "empty_update": stage == "zero0" and "bf16" in traits,
    }
    key = tuple(options.values())
    if key not in _oracles:
        _oracles[key] = Oracle(**options)
    return _oracles[key]


def tolerance(case):
    # DeepSpeed adds up the gradients of ranks and micro-steps in bfloat16, which has 8 bits, one process in float32.
    return 0.05 if "bf16" in case else 1e-5


@pytest.mark.parametrize("case", cases(CASES, FIRST))
@pytest.mark.parametrize("quantity", HELD)
def test_ranks_together_are_one_process(folder, case, quantity):
    if quantity != "gradient" or "offload" not in case:
        oracle = copy.copy(oracle_of(case))
        if case in RESUMED:  # frozen weights are written when a Monitor begins
            weights = oracle.held["weight"]
            oracle.held = {**oracle.held, "weight": {**weights, (2, "frozen"): weights[0, "frozen"]}}
        check_held(open_case(folder, case), oracle, quantity, tolerance(case))


@pytest.mark.parametrize("case", cases([*PLAIN, *HALF, "zero2-buckets-scaled-alone-x2-direct"], FIRST))
def test_local_gradients_are_those_of_the_ranks_own_batch(folder, case):
    run, oracle = open_case(folder, case), oracle_of(case, zeros=())
    check_local(run, oracle, range(2), tolerance(case))
    # Where each micro-step is reduced by itself, the sum of several exists nowhere.
    if "x2" not in case or case.startswith(("zero0", "zero1")):
        check_accumulated(run, oracle, range(2), tolerance(case))


@pytest.mark.parametrize("case", cases([*PLAIN, *HALF, "zero2-buckets-scaled-alone-x2-direct"], FIRST))
def test_activations_are_those_of_the_ranks_own_batch(folder, case):
    oracle, run = oracle_of(case), open_case(folder, case)
    for rank in range(2):
        for quantity, kept in (("activation", oracle.outputs), ("activation_gradient", oracle.output_gradients)):
            for micro_step in range(2 if "x2" in case else 1):
                expected = {at: kept[at, micro, own] for at, micro, own in kept if (micro, own) == (micro_step, rank)}
                check_target(run, "blocks.1", quantity, expected, rank, tolerance(case), micro_step)


@pytest.mark.parametrize("case", cases(COUNTED, ["zero3"]))
def test_watching_issues_no_collective_and_changes_no_loss(folder, case):
    for rank in range(2):
        found = json.loads((folder / f"collectives-{case}-{rank}.json").read_text())
        assert sum(found["without"]["counts"].values()) > 5
        assert found["with"] == found["without"]


@pytest.mark.parametrize("case", cases(SKIPPED, FIRST))
def test_a_skipped_update_is_marked_and_its_step_is_kept(folder, case):
    run = open_case(folder, case)
    skipped = run.series("skipped_step", "scalar")
    assert (skipped.steps.tolist(), skipped.values.tolist()) == ([1], [1.0])
    nans = run.series("head.weight", "gradient", "nans")
    assert nans.steps.tolist() == [0, 1, 2]
    assert [count > 0 for count in nans.values] == [False, True, False]
    for quantity in ("weight", "gradient_applied"):
        assert run.series("head.weight", quantity).steps.tolist() == [0, 2]
    # The update before the skipped one is that of a training in which nothing is skipped.
    wanted = oracle_of(case).held["weight"][0, "head.weight"].norm()
    np.testing.assert_allclose(run.series("head.weight", "weight").values[0], wanted, rtol=tolerance(case))


def parameters(run, rank):
    return {parameter["name"]: parameter for parameter in run.structure(rank)["parameters"]}


@pytest.mark.parametrize(
    "case", cases(["zero1", "zero2-groups-bare-scattered", "zero3", "zero3-x2-groups-small"], FIRST)
)
def test_the_layout_gives_each_element_to_one_rank(folder, case):
    run = open_case(folder, case)
    ranks = [parameters(run, rank) for rank in range(2)]
    assert {parameter["name"]: parameter["shape"] for parameter in ranks[0].values()} == {
        name: list(parameter.shape) for name, parameter in oracle_of(case).model.named_parameters()
    }
    for name, parameter in oracle_of(case).model.named_parameters():
        if parameter.requires_grad or case.startswith("zero3"):
            held = [index for rank in ranks for index in range(*rank[name]["range"])]
            assert sorted(held) == list(range(parameter.numel())), name
            assert [rank[name]["replicas"] for rank in ranks] == [[0], [1]]
        else:
            assert [rank[name]["replicas"] for rank in ranks] == [[0, 1], [0, 1]]
    sizes = {module["name"]: module["num_parameters"] for module in run.structure()["modules"]}
    assert (sizes["head"], sizes["blocks.0.up"]) == (66, 126)
    assert (run.mesh, run.structure()["engine"]) == ({"data": 2}, "deepspeed")


def test_stage_0_is_replicated_and_written_once(folder):
    for case in ("zero0", "zero0-bf16"):
        run = open_case(folder, case)
        assert [parameters(run, rank)["head.weight"]["replicas"] for rank in range(2)] == [[0, 1], [0, 1]]
        assert not set(HELD) & set(run.quantities(1))


@thorough
def test_what_exists_nowhere_is_switched_off_with_its_reason(folder):
    run = open_case(folder, LOOSE)
    reasons = {part.part: part.error for part in run.parts_off}
    assert set(reasons) == {"gradient", "gradient_accumulated"}
    assert "offloaded optimizer" in reasons["gradient"]
    assert "reduce the gradients of each micro-step separately" in reasons["gradient_accumulated"]
    assert not {"gradient", "gradient_accumulated"} & set(run.quantities())
    check_held(run, oracle_of(LOOSE), "weight")


@thorough
def test_a_model_that_was_watched_too_early_says_so(folder):
    off = open_case(folder, "early-zero2").parts_off
    assert [part.part for part in off] == ["optimizer", "optimizer"]  # on each rank
    assert "Call vario.watch after deepspeed.initialize" in off[0].error


def rows(folder, kind, rank):
    (run,) = (folder / "msprobe").glob(f"*-rank{rank}-*")
    found = [row for path in sorted(run.glob(f"{kind}_*.csv")) for row in csv.DictReader(path.read_text().splitlines())]
    return [((int(row["step"]), row["name"].removeprefix("module.")), float(row["norm"])) for row in found]


@thorough
def test_files_of_msprobe_have_reduced_and_unreduced_gradients(folder):
    oracle = oracle_of(MSPROBE, zeros=())
    for rank in range(2):
        expected = {
            (step, name): gradient.norm().item()
            for (step, _, owner), gradients in oracle.local.items()
            for name, gradient in gradients.items()
            if owner == rank
        }
        # Files of msprobe keep six digits.
        assert dict(rows(folder, "grad_unreduced", rank)) == pytest.approx(expected, rel=1e-5)
    squares: dict[tuple[int, str], float] = {}
    for key, norm in rows(folder, "grad_reduced", 0) + rows(folder, "grad_reduced", 1):
        squares[key] = squares.get(key, 0.0) + norm**2
    applied = oracle_of(MSPROBE).held["gradient_applied"]
    assert {key: square**0.5 for key, square in squares.items()} == pytest.approx(
        {key: gradient.norm().item() for key, gradient in applied.items()}, rel=1e-5
    )
