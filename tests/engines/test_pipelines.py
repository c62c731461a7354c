"""Pipelines of torch.distributed.pipelining on two and four real ranks, against one process."""

import pytest
from oracle import HELD, Oracle, check_held, check_target, open_case, torchrun
from pipelines import MICRO_BATCHES

from thorough import cases, wanted

pytestmark = pytest.mark.slow

TWO_RANKS = ["gpipe", "1f1b", "1f1b-early"]
FOUR_RANKS = ["1f1b-ddp"]  # GPipe under DDP dies of an assertion inside torch 2.13, watched or not
ALL = [*TWO_RANKS, *FOUR_RANKS]
FIRST = ["gpipe", "gpipe-alike"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("pipelines")
    torchrun(place, "pipelines.py", *wanted(request, [*TWO_RANKS, "gpipe-alike"], FIRST))
    if four_ranks := wanted(request, FOUR_RANKS, FIRST):
        torchrun(place, "pipelines.py", *four_ranks, ranks=4)
    return place


@pytest.fixture(scope="module")
def oracles():
    found = {}
    for pipelines in (1, 2):
        found[pipelines] = Oracle(pipelines, MICRO_BATCHES, clip=False, spare=False)
    return found


def num_pipelines(case):
    return 2 if case in FOUR_RANKS else 1


@pytest.mark.parametrize("case", cases(ALL, FIRST))
@pytest.mark.parametrize("quantity", HELD)
def test_stages_together_are_one_process(folder, oracles, case, quantity):
    run = open_case(folder, case)
    check_held(run, oracles[num_pipelines(case)], quantity)
    assert not any(run.series(name, quantity).note for name in run.targets(quantity))


@pytest.mark.parametrize("case", cases(ALL, FIRST))
def test_each_micro_batch_is_a_micro_step(folder, oracles, case):
    run, oracle = open_case(folder, case), oracles[num_pipelines(case)]
    for rank in run.ranks:
        pipeline, stage = divmod(rank, 2)
        for micro_step in range(MICRO_BATCHES):
            keys = [key for key in oracle.local if key[1:] == (micro_step, pipeline)]
            for name in run.targets("gradient_local", rank=rank):
                # The schedule divides the sum: what one backward adds is that many times as large.
                expected = {key[0]: MICRO_BATCHES * oracle.local[key][name] for key in keys}
                check_target(run, name, "gradient_local", expected, rank, micro_step=micro_step)
            if stage == 1:
                outputs = {key[0]: oracle.outputs[key] for key in keys}
                check_target(run, "blocks.1", "activation", outputs, rank, micro_step=micro_step)


def test_stages_that_name_other_layers_alike_are_not_taken_for_replicas(folder, oracles, caplog):
    run, oracle = open_case(folder, "gpipe-alike"), oracles[1]
    for rank, block in enumerate(("blocks.0", "blocks.1")):
        expected = {step: oracle.held["weight"][step, f"{block}.up.weight"] for step in range(3)}
        check_target(run, "blocks.0.up.weight", "weight", expected, rank)
    merged = run.series("blocks.0.up.weight", "weight")
    assert merged.values.tolist() == run.series("blocks.0.up.weight", "weight", rank=0).values.tolist()
    assert "ranks 0, 1 have different tensors with one name" in merged.note
    assert merged.note in caplog.text
