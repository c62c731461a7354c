"""Trainings on two real ranks through every stage of DeepSpeed, against one process."""

import json
from pathlib import Path

import pytest
import torch
from oracle import HELD, Oracle, check_accumulated, check_held, check_local, check_target, open_case, torchrun

pytestmark = pytest.mark.slow

PACKAGES = Path(__file__).parents[2] / ".peers" / "engines"  # `make peers` makes it
CASES = ["zero0-x2", "zero0-bf16-x2"]
CASES += ["zero1-x2-groups", "zero1-bf16", "zero1-bf16-fp32sum", "zero1-bf16-fp32sum-x2"]
CASES += ["zero2-x2-base", "zero2-groups-bare", "zero2-scattered", "zero2-buckets-x2", "zero2-scaled", "zero2-offload"]
CASES += ["zero3-alone", "zero3-x2-groups-small", "zero3-bf16-x2", "zero3-persistent-buckets", "zero3-scaled-x2"]
CASES += ["zero3-offload"]
COUNTED = []


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = Path("/tmp/dsw")
    return place


_oracles = {}


def oracle_of(case, zeros=("spare.weight", "spare.bias")):
    """One process; ZeRO gives what nobody uses gradients of zero, which `local` does not have."""
    stage, *traits = case.split("-")
    is_plain = stage == "zero0" and "bf16" not in traits
    options = {
        "accumulation": 2 if "x2" in traits else 1,
        "dtype": torch.bfloat16 if "bf16" in traits else torch.float32,
        "zeros": () if is_plain else zeros,
        "groups": 2 if "groups" in traits else 1,
        "rounded": "bf16" in traits,  # the master copies are made of the rounded parameters
    }
    key = tuple(options.values())
    if key not in _oracles:
        _oracles[key] = Oracle(**options)
    return _oracles[key]


def tolerance(case):
    return 0.01 if "bf16" in case else 1e-5


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("quantity", HELD)
def test_ranks_together_are_one_process(folder, case, quantity):
    if quantity != "gradient" or "offload" not in case:
        check_held(open_case(folder, case), oracle_of(case), quantity, tolerance(case))


@pytest.mark.parametrize("case", CASES)
def test_local_gradients_are_those_of_the_ranks_own_batch(folder, case):
    run, oracle = open_case(folder, case), oracle_of(case, zeros=())
    check_local(run, oracle, range(2), tolerance(case))
    if "gradient_accumulated" in run.quantities():
        check_accumulated(run, oracle, range(2), tolerance(case))


@pytest.mark.parametrize("case", CASES)
def test_activations_are_those_of_the_ranks_own_batch(folder, case):
    oracle, run = oracle_of(case), open_case(folder, case)
    for rank in range(2):
        for quantity, kept in (("activation", oracle.outputs), ("activation_gradient", oracle.output_gradients)):
            for micro_step in range(2 if "x2" in case else 1):
                expected = {at: kept[at, micro, own] for at, micro, own in kept if (micro, own) == (micro_step, rank)}
                check_target(run, "blocks.1", quantity, expected, rank, tolerance(case), micro_step)
