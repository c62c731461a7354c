"""accelerate, the Trainer and Lightning on two real ranks, under each engine they offer, against one process."""

import pytest
from oracle import HELD, Oracle, check_accumulated, check_held, check_local, check_target, open_case, torchrun

from releases import runs_here
from thorough import cases, wanted

pytestmark = pytest.mark.slow

CASES = ["accelerate-ddp-x2", "accelerate-fsdp-x2", "accelerate-fsdp2-x2"]
CASES += ["transformers-ddp-x2", "transformers-fsdp2-x2", "lightning-ddp-x2", "lightning-fsdp2-x2"]
FIRST = ["transformers-ddp-x2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("trainers")
    # accelerate keeps its state for the life of a process, Lightning its process group.
    for some in (CASES[:3], CASES[3:4], CASES[4:5], CASES[5:]):
        chosen = wanted(request, some, FIRST)
        if any(map(runs_here, chosen)):
            torchrun(place, "trainer_engines.py", *chosen, ready=["transformers.trainer"])
    return place


@pytest.fixture(scope="module")
def oracles():
    # Lightning clips no sharded gradients.
    return {clip: Oracle(world_size=2, accumulation=2, clip=clip, spare=False) for clip in (True, False)}


def expected(oracles, case):
    trainer = case.partition("-")[0]
    oracle = oracles[case != "lightning-fsdp2-x2"]
    return oracle.seen_by("toy." if trainer == "lightning" else "", 1 if trainer == "transformers" else 0)


@pytest.mark.parametrize("case", cases(CASES, FIRST))
def test_ranks_together_are_one_process(folder, oracles, case):
    run = open_case(folder, case)
    frozen = ["toy.frozen", "frozen"]
    for quantity in HELD:
        # FSDP1 gives a frozen parameter in a unit that trains a gradient of zero, which nobody uses.
        check_held(run, expected(oracles, case), quantity, without=frozen if case == "accelerate-fsdp-x2" else ())


@pytest.mark.parametrize("case", cases(CASES, FIRST))
def test_each_rank_shows_its_own_gradients_and_activations(folder, oracles, case):
    run, oracle = open_case(folder, case), expected(oracles, case)
    also = ["frozen"] if case == "accelerate-fsdp-x2" else ()
    check_local(run, oracle, range(2), without=also)
    # Lightning lets FSDP2 reduce after every pass: no rank ever has the sum of its own.
    if case != "lightning-fsdp2-x2":
        check_accumulated(run, oracle, range(2), without=also)
    module = "toy.blocks.1" if case.startswith("lightning") else "blocks.1"
    for rank in range(2):
        for micro_step in range(2):
            outputs = {key[0]: output for key, output in oracle.outputs.items() if key[1:] == (micro_step, rank)}
            check_target(run, module, "activation", outputs, rank, micro_step=micro_step)
