"""Trainings on two and four real ranks, through every engine of torch itself, against one process."""

import json
import subprocess
import sys

import pytest
import torch
from oracle import HELD, Oracle, check_accumulated, check_held, check_local, check_target, open_case, torchrun

from releases import runs_here, skip_unless_it_runs
from thorough import cases, thorough, wanted
from vario import ConfigError, first_desync
from vario.backends.torch.releases import CAN_HOOK_IN_GRAPHS
from vario.cli import main

pytestmark = pytest.mark.slow

TWO_RANKS = ["ddp", "ddp-views-x2", "fsdp", "fsdp-x2", "fsdp-noshard-x2", "fsdp-gradop-x2", "fsdp2", "fsdp2-x2", "tp"]
TWO_RANKS += ["fsdp-bf16-x2", "fsdp2-bf16-x2", "ddp-compiled-x2", "fsdp2-compiled-x2", "ddp-zero"]
ODD_ONES = ["ddp-flip", "ddp-experts", "tp-sp", "fsdp2-renamed"]
FOUR_RANKS = ["fsdp2-tp-x2", "fsdp2-hsdp-x2", "ddp-tp-x2"]
COUNTED = ["ddp-x2", "fsdp-x2", "fsdp2-x2", "tp-sp"]
ALL = [*TWO_RANKS, *FOUR_RANKS]
FIRST = ["ddp", "fsdp", "fsdp2-x2", "tp", "count:ddp-x2", "ddp-flip"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("engines")
    # The last one changes the process it runs in.
    two_ranks = [*TWO_RANKS, *(f"count:{case}" for case in COUNTED), *ODD_ONES]
    torchrun(place, "torch_engines.py", *wanted(request, two_ranks, FIRST))
    if four_ranks := wanted(request, [*FOUR_RANKS, "ddp-halves-flip"], FIRST):
        torchrun(place, "torch_engines.py", *four_ranks, ranks=4)
    return place


_oracles = {}


def oracle_of(case):
    engine, *traits = case.split("-")
    world_size = 1 if engine == "tp" else 2 if case not in FOUR_RANKS or "tp" in traits else 4
    options = {
        "world_size": world_size,
        "accumulation": 2 if "x2" in traits else 1,
        "dtype": torch.bfloat16 if "bf16" in traits else torch.float32,
        "clip": "tp" not in (engine, *traits),
        "zeros": ("spare.weight", "spare.bias") if engine == "fsdp" else (),
        "spare": "tp" not in (engine, *traits),
        "length": 6 if "sp" in traits else None,
    }
    key = tuple(options.values())
    if key not in _oracles:
        _oracles[key] = Oracle(**options)
    return _oracles[key]


def also(case):
    """FSDP1 gives a frozen parameter in a unit that trains a gradient of zero, which nobody uses."""
    return ["frozen"] if case.startswith("fsdp") and not case.startswith("fsdp2") else ()


def tolerance(case):
    # FSDP1 adds up micro-steps in bfloat16, which has 8 bits, one process in float32.
    return 0.01 if case == "fsdp-bf16-x2" else 1e-5


@pytest.mark.parametrize("case", cases(ALL, FIRST))
@pytest.mark.parametrize("quantity", HELD)
def test_ranks_together_are_one_process(folder, case, quantity):
    check_held(open_case(folder, case), oracle_of(case), quantity, tolerance(case), also(case))


@pytest.mark.parametrize("case", cases([case for case in ALL if "tp" not in case], FIRST))
def test_local_gradients_are_those_of_the_ranks_own_batch(folder, case):
    ranks = range(4 if case in FOUR_RANKS else 2)
    run = open_case(folder, case)
    check_local(run, oracle_of(case), ranks, tolerance(case), also(case))
    # FSDP2 keeps the sum of several micro-steps to itself where it reduces in another precision than it computes in.
    if case != "fsdp2-bf16-x2":
        check_accumulated(run, oracle_of(case), ranks, tolerance(case), also(case))


@pytest.mark.parametrize("case", cases(ALL, FIRST))
def test_activations_are_those_of_the_ranks_own_batch(folder, case):
    oracle, run = oracle_of(case), open_case(folder, case)
    quantities = {"activation": oracle.outputs}
    if CAN_HOOK_IN_GRAPHS or "compiled" not in case:
        quantities["activation_gradient"] = oracle.output_gradients
    for rank in run.ranks:
        owner = 0 if case == "tp" else rank // 2 if "tp" in case else rank
        for quantity, kept in quantities.items():
            for micro_step in range(2 if "x2" in case else 1):
                expected = {
                    step: kept[step, micro, own] for step, micro, own in kept if (micro, own) == (micro_step, owner)
                }
                check_target(run, "blocks.1", quantity, expected, rank, tolerance(case), micro_step)


@pytest.mark.parametrize("case", cases(COUNTED, ["ddp-x2"]))
def test_watching_issues_no_collective_and_changes_no_loss(folder, case):
    skip_unless_it_runs(case)
    for rank in range(2):
        found = json.loads((folder / f"collectives-{case}-{rank}.json").read_text())
        assert sum(found["without"]["counts"].values()) > 5
        assert found["with"] == found["without"]


def parameters(run, rank):
    return {parameter["name"]: parameter for parameter in run.structure(rank)["parameters"]}


@thorough
def test_the_layout_tells_shards_from_replicas(folder):
    run = open_case(folder, "fsdp2")
    shards = [parameters(run, rank)["head.weight"] for rank in range(2)]
    assert [shard["shape"] for shard in shards] == [[11, 6], [11, 6]]
    assert [shard["box"] for shard in shards] == [[[0, 6], [0, 6]], [[6, 11], [0, 6]]]
    assert [shard["replicas"] for shard in shards] == [[0], [1]]
    both = [parameters(open_case(folder, "fsdp2-hsdp-x2"), rank)["head.weight"]["replicas"] for rank in range(4)]
    assert both == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_the_layout_tells_flat_shards_from_replicas(folder):
    flat = [parameters(open_case(folder, "fsdp"), rank)["head.weight"] for rank in range(2)]
    assert flat[0]["shape"] == [11, 6]
    assert sorted(at for part in flat for at in part["range"])[-1] == 66
    everywhere = [parameters(open_case(folder, "ddp"), rank)["head.weight"] for rank in range(2)]
    assert [entry["replicas"] for entry in everywhere] == [[0, 1], [0, 1]]
    assert "box" not in everywhere[0]


@thorough
def test_the_mesh_is_named(folder):
    run = open_case(folder, "fsdp2-tp-x2")
    assert run.mesh == {"data": 2, "tensor": 2}


def test_replicas_are_written_by_the_first_rank_and_read_from_any(folder):
    run = open_case(folder, "ddp")
    assert set(HELD) <= set(run.quantities(0))
    assert not set(HELD) & set(run.quantities(1))
    own, first = (run.series("head.weight", "gradient", rank=rank) for rank in (1, 0))
    assert own.values.tolist() == first.values.tolist()
    assert own.rank == 1


def test_all_ranks_keep_checksums_of_what_they_hold_alike(folder):
    run = open_case(folder, "ddp")
    names = set(run.targets("weight")) - {"frozen"}
    assert set(run.targets("checksum")) == {f"{name}:weight" for name in names} | {
        f"{name}:gradient" for name in run.targets("gradient")
    }
    for name in run.targets("checksum"):
        first, second = (run.series(name, "checksum", "mean", rank=rank).values for rank in (0, 1))
        assert len(first) == 3
        assert first.tolist() == second.tolist()
    assert first_desync(run) is None


@thorough
def test_shards_have_no_checksums(folder):
    assert "checksum" not in open_case(folder, "fsdp2").quantities(0)
    assert first_desync(open_case(folder, "fsdp2-hsdp-x2")) is None


def test_one_flipped_bit_on_one_rank_is_found(folder):
    found = first_desync(open_case(folder, "ddp-flip"))
    assert (found.step, found.target, found.quantity, len(found.checksums)) == (1, "blocks.1.up.weight", "weight", 2)
    assert len(set(found.checksums.values())) == 2


@thorough
def test_models_that_train_side_by_side_under_one_name_are_not_replicas(folder):
    run = open_case(folder, "ddp-halves-flip")
    values = [run.series("head.weight", "weight", rank=rank).values for rank in range(4)]
    assert values[0].tolist() == values[1].tolist() != values[2].tolist() == values[3].tolist()
    assert run.series("head.weight", "weight").values.tolist() == values[0].tolist()
    assert run.series("head.weight", "weight", "count").values.tolist() == [66] * 3
    frame = run.frame(2, "weight", rank="all").to_pydict()
    assert frame["count"][frame["target"].index("head.weight")] == 66
    found = first_desync(run)
    assert (found.step, found.target, found.quantity) == (1, "blocks.1.up.weight", "weight")
    assert sorted(found.checksums) == [2, 3]


@thorough
def test_values_that_cover_one_of_several_models_say_so(folder):
    run = open_case(folder, "ddp-halves-flip")
    assert "ranks 0, 2 have different tensors with one name" in run.series("head.weight", "weight").note
    assert not run.series("head.weight", "weight", rank=3).note
    assert not run.series("head.weight", "gradient_local").note


@thorough
def test_experts_of_one_name_on_each_rank_are_told_apart(folder, caplog, capsys):
    run = open_case(folder, "ddp-experts")
    expert, shared = "blocks.1.up.weight", "blocks.0.up.weight"
    own = [run.series(expert, "weight", rank=rank).values.tolist() for rank in range(2)]
    assert own[0] != own[1]
    merged = run.series(expert, "weight")
    assert merged.values.tolist() == own[0]
    assert "rank='all' shows only rank 0; rank=N shows each" in merged.note
    assert caplog.text.count("have different tensors with one name") == 1
    assert not run.series(shared, "weight").note
    frame = run.frame(2, "weight", rank="all").to_pydict()
    norm = frame["sum_squares"][frame["target"].index(expert)] ** 0.5
    assert norm == pytest.approx(own[0][2])
    assert main(["report", str(run.path)]) == 0
    printed = " ".join(capsys.readouterr().out.replace("│", "").split())
    assert "weight of 'blocks.1.up.bias', 'blocks.1.up.weight': ranks 0, 1 have different tensors" in printed


@thorough
def test_tensor_parallelism_under_ddp_has_its_place_in_the_mesh(folder):
    run = open_case(folder, "ddp-tp-x2")
    assert run.mesh == {"data": 2, "tensor": 2}
    shards = [parameters(run, rank)["blocks.0.up.weight"] for rank in range(4)]
    assert [shard["box"] for shard in shards] == [[[0, 9], [0, 6]], [[9, 18], [0, 6]]] * 2
    assert [shard["replicas"] for shard in shards] == [[0, 2], [1, 3]] * 2
    assert not any(run.series(name, "weight").note for name in run.targets("weight"))


@thorough
def test_gradients_that_only_all_ranks_together_have_are_left_out(folder):
    run, oracle = open_case(folder, "tp-sp"), oracle_of("tp-sp")
    check_held(run, oracle, "weight")
    check_held(run, oracle, "moment")
    for quantity in ("gradient", "gradient_applied"):
        names = {name for _, name in oracle.held[quantity] if "norm" not in name}
        assert set(run.targets(quantity)) == names
        for name in names:
            tensors = {step: tensor for (step, of), tensor in oracle.held[quantity].items() if of == name}
            check_target(run, name, quantity, tensors)
    assert first_desync(run) is None


@thorough
def test_a_runtime_that_renamed_its_insides_costs_only_what_was_read_there(folder):
    run = open_case(folder, "fsdp2-renamed")
    for quantity in HELD:
        check_held(run, oracle_of("fsdp2"), quantity)
    lost = {"gradient_local", "gradient_accumulated"}
    assert {part.part for part in run.parts_off} == lost
    assert all("no attribute '_fsdp_param_group'" in part.error for part in run.parts_off)
    assert not lost & set(run.quantities("all"))


def test_a_rank_without_a_target_names_those_that_have_it(folder):
    run = open_case(folder, "fsdp")
    without = next(name for name, held in parameters(run, 0).items() if held.get("range") == [0, 0])
    with pytest.raises(ConfigError, match=f"rank: 0 has no weight of '{without}'. Ranks that have it: 1."):
        run.series(without, "weight", rank=0)


@thorough
def test_a_frame_of_all_ranks_is_what_series_say(folder):
    for case in filter(runs_here, ("fsdp2", "fsdp", "ddp", "fsdp2-hsdp-x2")):
        run = open_case(folder, case)
        for quantity in ("gradient", "moment", "activation"):
            frame = run.frame(2, quantity, rank="all").to_pydict()
            assert set(frame["target"]) == set(run.targets(quantity))
            for target, count, squares in zip(frame["target"], frame["count"], frame["sum_squares"], strict=True):
                if quantity != "activation":
                    assert count == run.series(target, quantity, "count").values[2]
                    assert squares**0.5 == pytest.approx(run.series(target, quantity, "norm").values[2], rel=1e-12)


def test_the_report_names_the_ranks_that_drift_apart(folder):
    done = subprocess.run(
        [sys.executable, "-m", "vario", "report", str(folder / "runs" / "ddp-flip")], capture_output=True, text=True
    )
    assert "Ranks out of sync: blocks.1.up.weight (weight)" in done.stdout
    assert "Since step 1 rank 1 and rank 0 differ, although they should be" in done.stdout


@thorough
def test_fsdp_without_the_names_of_its_parameters_is_refused(tmp_path):
    refusal = "ModelError: watch: this FSDP model was built with use_orig_params=False, so its parameters "
    with pytest.raises(AssertionError, match=refusal):
        torchrun(tmp_path, "torch_engines.py", "fsdp-flat")
