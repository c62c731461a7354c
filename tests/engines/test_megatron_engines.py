"""Megatron-core on two and four real ranks, in every way it splits a model, against one process that splits nothing."""

import csv
import json
import math
import os
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from oracle import HELD, HERE, open_case, statistics, torchrun

from starting import run_warm
from thorough import cases, thorough, wanted
from vario.backends.torch.engines.megatron import MegatronEngine
from vario.core.errors import ModelError

pytestmark = pytest.mark.slow

PEERS = Path(__file__).parents[2] / ".peers"
TWO_RANKS = {
    "fp32": "fp32:2",
    "fp32-distopt": "fp32:2",
    "fp32-distopt-overlap": "fp32:2",
    "fp32-spare": "fp32-spare:2",
    "fp32-recompute": "fp32:2",
    "fp32-fused": "fp32:2",
    "bf16": "bf16:2",
    "bf16-distopt": "bf16:2",
    "fp16-distopt": "fp16:2",
    "fp16-skip": "fp16-skip:2",
    "fp32-tp": "fp32:1",
    "fp32-pp-dealloc": "fp32:1",
    "fp32-vpp-distopt": "fp32:1",
    "fp32-tied-pp": "fp32-tied:1",
    "fp32-moe-ep-distopt-member": "fp32-moe:2",
    # Above, one member of a chain was given; here is the module inside the wrapper; no optimizer; the torch optimizer
    # inside Megatron's; an optimizer not made yet.
    "fp32-distopt-bare": "fp32:2",
    "bf16-distopt-alone": "bf16:2",
    "bf16-inner": "bf16:2",
    "bf16-distopt-late": "bf16:2",
}
FOUR_RANKS = {"fp32-tp-distopt": "fp32:2", "bf16-pp": "bf16:2", "fp32-moe-ep": "fp32-moe:4"}
CASES = {**TWO_RANKS, **FOUR_RANKS}
COUNTED = ["fp32-distopt-overlap", "fp32-vpp"]
TRAINER_MON = ["bf16", "fp32-moe-ep", "bf16-distopt-groups", "fp32-distopt", "fp32-vpp"]
PEER = ["bf16", "fp32-moe-ep", "bf16-distopt", "fp32-distopt"]
OTHERS = ["fp32-resumed", "fp32-distopt-elsewhere", "fp32-moe-ep-grouped"]
WATCHED_FROM_OUTSIDE = "bf16-vpp-distopt"
FIRST = ["fp32", "bf16-distopt", "fp32-tp", "count:fp32-distopt-overlap"]
MICRO_STEPS = range(2)
SKIPPED = 1


def environment(*more):
    assert (PEERS / "engines" / "megatron").is_dir(), "Megatron-core is missing: make peers"
    folders = [HERE, HERE.parent, *(PEERS / name for name in more), PEERS / "engines"]
    return {"PYTHONPATH": os.pathsep.join(map(str, folders)), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    place = tmp_path_factory.mktemp("megatron")
    alone = sorted({CASES[case] for case in wanted(request, CASES, FIRST)})
    done = run_warm([HERE / "megatron_oracle.py", *alone], cwd=place, env={**os.environ, **environment()})
    assert done.returncode == 0, done.stderr[-4000:]
    arguments = [*TWO_RANKS, *OTHERS, *(f"count:{case}" for case in COUNTED)]
    # mindstudio-probe last: it patches torch for good.
    arguments += [*(f"vario:{case}" for case in TRAINER_MON), *(f"msprobe:{case}" for case in PEER)]
    arguments = wanted(request, arguments, FIRST)
    torchrun(place, "megatron_engines.py", *arguments, environment=environment("26.2.0", "common"))
    if four_ranks := wanted(request, FOUR_RANKS, FIRST):
        torchrun(place, "megatron_engines.py", *four_ranks, ranks=4, environment=environment())
    return place


@cache
def oracle_of(folder, case):
    return SimpleNamespace(**torch.load(folder / f"{CASES.get(case, case)}.pt"))


def parameters(run, rank):
    return {parameter["name"]: parameter for parameter in run.structure(rank)["parameters"]}


def coordinate(run, rank, dimension):
    """Where a rank is in one dimension of the mesh: Megatron counts tensor parallelism fastest, pipelines slowest."""
    strides = {"tensor": 1, "data": run.mesh["tensor"], "pipeline": run.mesh["tensor"] * run.mesh["data"]}
    return rank // strides[dimension] % run.mesh[dimension]


def rows_of(table):
    """{(step, micro-step, target): statistics}"""
    found = {}
    for row in table.to_pylist():
        numbers = {key: row[key] for key in ("count", "min", "max", "nans")}
        numbers |= {"norm": math.sqrt(row["sum_squares"]), "mean": row["sum"] / max(row["count"], 1)}
        key = row["step"], row["micro_step"], row["target"]
        assert key not in found
        found[key] = numbers
    return found


def check_rows(rows, expected, rtol=1e-5, note=""):
    """Every row is that of the expected tensor of its key, and none is missing."""
    assert set(rows) == set(expected), note
    for key, tensor in expected.items():
        wanted = statistics(tensor.float())
        for statistic, value in rows[key].items():
            # What lies near zero is small against the other elements, not against itself; the rest is relative.
            near_zero = statistic in ("mean", "min", "max")
            slack = rtol * wanted["norm"] / wanted["count"] ** 0.5 if near_zero else 0.0
            assert value == pytest.approx(wanted[statistic], rel=rtol, abs=slack), f"{statistic} of {key} {note}"


@pytest.mark.parametrize("case", cases(CASES, FIRST))
@pytest.mark.parametrize("quantity", HELD)
def test_ranks_together_are_one_process(folder, case, quantity):
    run = open_case(folder, case)
    expected = {(step, 0, name): tensor for (step, name), tensor in oracle_of(folder, case).held[quantity].items()}
    if "skip" in case:
        expected = {key: tensor for key, tensor in expected.items() if key[0] != SKIPPED}
    if "tied" in case:
        # The last stage has a copy of the first one's embedding under a name of its own.
        word, copy = "embedding.word_embeddings.weight", "output_layer.weight"
        expected |= {
            (*key[:2], key[2].replace(word, copy)): tensor for key, tensor in expected.items() if word in key[2]
        }
    rows = {}
    for step in sorted({key[0] for key in expected}):
        rows |= rows_of(run.frame(step, quantity, rank="all"))
    check_rows(rows, expected)


@pytest.mark.parametrize("case", cases([case for case in CASES if "moe" not in case and "tied" not in case], FIRST))
def test_local_and_accumulated_gradients_are_those_of_the_ranks_own_batches(folder, case):
    run, oracle = open_case(folder, case), oracle_of(folder, case)
    for rank in run.ranks:
        held, owner = parameters(run, rank), coordinate(run, rank, "data")
        own = {
            (step, micro_step, name): gradient[tuple(slice(*held_range) for held_range in held[name].get("box", ()))]
            for (step, micro_step, who), gradients in oracle.local.items()
            for name, gradient in gradients.items()
            if who == owner and name in held and not ("skip" in case and step == SKIPPED)
        }
        assert own
        # Of several micro-steps the last one has the sum.
        sums = {(*key[:1], 0, key[2]): sum(own[key[0], at, key[2]] for at in MICRO_STEPS) for key in own}
        accumulated = rows_of(run.to_arrow("gradient_accumulated", rank))
        check_rows(finite(case, accumulated), sums, tolerance(case), f"accumulated on rank {rank}")
        if "fused" not in case:
            local = rows_of(run.to_arrow("gradient_local", rank))
            check_rows(finite(case, local), own, tolerance(case), f"local on rank {rank}")


def finite(case, rows):
    return {key: row for key, row in rows.items() if not ("skip" in case and key[0] == SKIPPED)}


def tolerance(case):
    # One process divides the loss by four micro-steps, a rank by two: float16 rounds small gradients otherwise then.
    return 2e-3 if "fp16" in case else 1e-5


@pytest.mark.parametrize("case", cases(CASES, FIRST))
def test_activations_are_those_of_the_ranks_own_batches_and_count_once(folder, case):
    run, oracle = open_case(folder, case), oracle_of(folder, case)
    holders = [rank for rank in run.ranks if "decoder.layers.1" in {m["name"] for m in run.structure(rank)["modules"]}]
    assert len(holders) == len(run.ranks) / run.mesh["pipeline"]
    for rank in holders:
        owner = coordinate(run, rank, "data")
        for quantity, kept in (("activation", oracle.outputs), ("activation_gradient", oracle.output_gradients)):
            rows = rows_of(run.to_arrow(quantity, rank))
            target = "decoder.layers.1:output.0"
            own = {(step, micro, target): kept[step, micro, who] for step, micro, who in kept if who == owner}
            found = {key: row for key, row in rows.items() if key[2] == target}
            if "skip" in case:
                own = {key: tensor for key, tensor in own.items() if key[0] != SKIPPED}
            check_rows(finite(case, found), own, tolerance(case), f"{quantity} on rank {rank}")


@pytest.mark.parametrize("case", cases(COUNTED, ["fp32-distopt-overlap"]))
def test_watching_issues_no_collective_and_changes_no_loss(folder, case):
    for rank in range(2):
        found = json.loads((folder / f"collectives-{case}-{rank}.json").read_text())
        assert sum(found["without"]["counts"].values()) > 5
        assert found["with"] == found["without"]


@thorough
def test_a_skipped_update_is_a_step_that_says_so(folder):
    run = open_case(folder, "fp16-skip")
    skipped = run.series("skipped_step", "scalar")
    assert (skipped.steps.tolist(), skipped.values.tolist()) == ([SKIPPED], [1.0])
    assert run.steps("gradient").tolist() == [0, 1, 2]
    assert run.steps("weight").tolist() == [0, 2]
    assert run.series("output_layer.weight", "gradient", "nans").values[SKIPPED] > 0


@thorough
def test_a_run_goes_on_from_a_step(folder):
    run = open_case(folder, "fp32-resumed")
    assert run.steps("gradient").tolist() == [5, 6, 7]
    first, resumed = (open_case(folder, case).series("output_layer.weight", "gradient") for case in ("fp32", run.name))
    assert first.values.tolist() == resumed.values.tolist()


@thorough
def test_what_a_fused_kernel_hides_is_switched_off_in_words(folder):
    run = open_case(folder, "fp32-fused")
    assert "gradient_local" not in run.quantities()
    (part,) = {off.part for off in run.parts_off}
    assert part == "gradient_local"
    assert "gradient_accumulation_fusion" in run.parts_off[0].error


@thorough
def test_a_release_that_keeps_things_elsewhere_is_told_of_and_trains_on(folder):
    run = open_case(folder, "fp32-distopt-elsewhere")
    off = {part.part: part.error for part in run.parts_off}
    assert {"gradient", "weight", "moment", "gradient_applied"} <= set(off)
    assert "there is no 'shard_fp32_groups'" in off["gradient"]
    assert run.steps("activation").tolist() == [0, 1, 2]


@thorough
def test_a_name_means_the_same_parameter_on_every_stage(folder):
    stages = [parameters(open_case(folder, "fp32-pp-dealloc"), rank) for rank in range(2)]
    assert not set(stages[0]) & set(stages[1])
    chunks = open_case(folder, "fp32-vpp-distopt")
    assert {layer(name) for name in parameters(chunks, 0)} == {"0", "2", None}
    assert {layer(name) for name in parameters(chunks, 1)} == {"1", "3", None}
    # Modules of which each chunk has one keep the chunk's number.
    names = [module["name"] for module in chunks.structure(0)["modules"]]
    assert {"root", "1.root", "decoder", "1.decoder", "decoder.layers.2.mlp"} <= set(names)
    experts = [
        {name for name in parameters(open_case(folder, "fp32-moe-ep"), rank) if "experts" in name} for rank in range(4)
    ]
    assert experts[0] == experts[2] != experts[1] == experts[3]


def layer(name):
    found = re.match(r"decoder\.layers\.(\d+)\.", name)
    return found and found[1]


@thorough
def test_the_layout_tells_slices_ranges_and_replicas(folder):
    run = open_case(folder, "fp32-tp-distopt")
    assert run.mesh == {"data": 2, "tensor": 2, "pipeline": 1}
    ranks = [parameters(run, rank) for rank in range(4)]
    split = [held["decoder.layers.0.mlp.linear_fc2.weight"] for held in ranks]
    assert [held["shape"] for held in split] == [[12, 24]] * 4
    assert [held["box"] for held in split] == [[[0, 12], [0, 12]], [[0, 12], [12, 24]]] * 2
    assert [held["replicas"] for held in split] == [[0], [1], [2], [3]]
    everywhere = [held["decoder.layers.0.input_layernorm.weight"] for held in ranks]
    assert [held["replicas"] for held in everywhere] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert "box" not in everywhere[0]
    # Some parameter lies across the end of a rank's piece.
    ranges = [{name: held["range"] for name, held in rank.items() if "range" in held} for rank in ranks]
    cut = [name for name, held in ranges[0].items() if 0 < held[1] < ranges[2][name][1]]
    assert cut
    assert all(ranges[0][name][1] == ranges[2][name][0] for name in cut)
    replicated = parameters(open_case(folder, "fp32"), 1)["output_layer.weight"]
    assert (replicated["replicas"], "range" in replicated) == ([0, 1], False)
    assert open_case(folder, "fp32-moe-ep").mesh == {"data": 4, "tensor": 1, "pipeline": 1, "expert": 2}


def test_shards_of_megatrons_own_fsdp_are_refused():
    # It asks for a GPU by number where it is made: the class alone is enough to be recognised by.
    model = type("FullyShardedDataParallel", (torch.nn.Module,), {"__module__": "megatron.core.distributed.fsdp"})()
    with pytest.raises(
        ModelError, match=r"Megatron's FullyShardedDataParallel.*Train with its DistributedDataParallel"
    ):
        MegatronEngine.check({"": model})


@thorough
def test_experts_without_names_of_their_own_lie_side_by_side(folder):
    run = open_case(folder, "fp32-moe-ep-grouped")
    held = [parameters(run, rank)["grouped"] for rank in range(2)]
    assert [entry["shape"] for entry in held] == [[6, 2], [6, 2]]
    assert [entry["box"] for entry in held] == [[[0, 3], [0, 2]], [[3, 6], [0, 2]]]
    assert run.series("grouped", "weight", "count").values.tolist() == [12, 12, 12]


# Files of msprobe


def norms(out, prefix, rank):
    """{(step, name): norm} of one kind of file, the names without wrappers."""
    (found,) = out.glob(f"*rank{rank}-*")
    rows = [
        row
        for path in sorted(found.glob(f"{prefix}_[0-9]*.csv"))
        for row in csv.DictReader(path.read_text().splitlines())
    ]
    return {
        (int(row["step"]), row["vpp_stage"], row["name"].replace("module.", "")): float(row["norm"]) for row in rows
    }


def expected_norms(oracle, ranges=None):
    """The same of reduced gradients as one process has them, of each parameter the elements of a range."""
    parts = {(step, name): tensor.flatten() for (step, name), tensor in oracle.held["gradient"].items()}
    if ranges is not None:
        parts = {(step, name): tensor[slice(*ranges[name])] for (step, name), tensor in parts.items()}
    return {(step, "0", name): part.norm().item() for (step, name), part in parts.items() if part.numel()}


@thorough
def test_files_of_msprobe_have_the_gradients_each_rank_owns(folder):
    for case, watched in (("bf16-distopt-groups", "bf16-distopt"), ("fp32-distopt", "fp32-distopt")):
        run = open_case(folder, watched)
        for rank in range(2):
            ranges = {name: held.get("range", (0, 0)) for name, held in parameters(run, rank).items()}
            found = norms(folder / f"vario-{case}", "grad_reduced", rank)
            assert found == pytest.approx(expected_norms(oracle_of(folder, watched), ranges), rel=1e-5)


@thorough
def test_files_of_msprobe_have_all_gradients_on_each_rank_without_a_distributed_optimizer(folder):
    for rank in range(2):
        found = norms(folder / "vario-bf16", "grad_reduced", rank)
        assert found == pytest.approx(expected_norms(oracle_of(folder, "bf16")), rel=1e-5)


@thorough
def test_files_of_msprobe_number_chunks_and_count_layers_in_each(folder):
    found = norms(folder / "vario-fp32-vpp", "grad_unreduced", 0)
    layers = {(stage, layer(name)) for _, stage, name in found}
    assert layers == {("0", None), ("0", "0"), ("1", "0")}


@thorough
@pytest.mark.parametrize("case", ["bf16", "fp32-moe-ep"])
def test_gradients_and_moments_are_those_of_mindstudio_probe(folder, case):
    for prefix in ("grad_reduced", "grad_unreduced", "exp_avg", "exp_avg_sq"):
        for rank in range(2):
            theirs, ours = (norms(folder / f"{kind}-{case}", prefix, rank) for kind in ("msprobe", "vario"))
            assert len(ours) > 70
            assert ours == pytest.approx(theirs, rel=1e-6)


@thorough
def test_mindstudio_probe_has_another_gradient_where_a_piece_cuts_a_parameter(folder):
    # Known of the release compared with; when it is mended there, the parity above can have these cases as well.
    cut = {"decoder.layers.1.mlp.linear_fc2.weight"}
    for case, ours in (("bf16-distopt", "bf16-distopt-groups"), ("fp32-distopt", "fp32-distopt")):
        for rank in range(2):
            theirs = norms(folder / f"msprobe-{case}", "grad_reduced", rank)
            own = norms(folder / f"vario-{ours}", "grad_reduced", rank)
            assert {key[2] for key in own if own[key] != pytest.approx(theirs[key], rel=1e-6)} == cut
            # In fp32 it also has what the rank does not own.
            assert (len(theirs) > len(own)) == (case == "fp32-distopt")


# Unchanged scripts


@thorough
def test_vario_run_finds_chunks_and_their_optimizer(folder):
    options = ["--name", "found", "--directory", "runs", "--every", "1", "--quantities", "weight,gradient,moment"]
    script = str(HERE / "megatron_engines.py")
    torchrun(folder, "-m", "vario", "run", *options, script, f"plain:{WATCHED_FROM_OUTSIDE}", environment=environment())
    run = open_case(folder, "found")
    assert (run.structure()["engine"], run.mesh["pipeline"]) == ("megatron", 2)
    assert run.steps("gradient").tolist() == [0, 1, 2]
    assert set(run.targets("weight")) == {name for _, name in oracle_of(folder, "bf16").held["weight"]}
