"""The same training under msprobe and under vario, file by file: trees, headers, names and every value."""

import contextlib
import json
import math
from pathlib import Path

import pytest
import reading
import torch

import training
from starting import run_warm
from vario.compat.msprobe.trainer_mon import StructureSaved

OPS = ["min", "max", "norm", "zeros", "nans", "mean"]
GRADIENTS = {"wg_distribution": True, "ops": OPS, "ndigits": 16}
EVERYTHING = {
    "targets": {},
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    "mg_direction": True,
    "ops": OPS,
    "ndigits": 16,
}
ATTENTION = ["0:decoder.layers.0.core_attention", "0:decoder.layers.1.core_attention"]
FEATURES = {"recording_l2_features": True, "ndigits": 16}

JOBS = {
    "everything": {"config": EVERYTHING, "clip": 0.01},
    "gpt": {"config": EVERYTHING, "model": "gpt"},
    "tied weights": {"config": EVERYTHING, "model": "tied"},
    "accumulation": {"config": EVERYTHING, "accumulate": 2, "clip": 0.01},
    "gpt with accumulation": {"config": EVERYTHING, "model": "gpt", "accumulate": 3},
    "forward only": {"config": {**EVERYTHING, "forward_only": True}},
    "backward only": {"config": {**EVERYTHING, "backward_only": True}},
    "both only": {"config": {"xy_distribution": True, "forward_only": True, "backward_only": True}},
    "no valid ops": {"config": {"wg_distribution": True, "ops": ["median"], "ndigits": 16}},
    "shape among the ops": {"config": {"wg_distribution": True, "ops": ["shape", "norm"], "ndigits": 16}},
    "large eps": {"config": {"wg_distribution": True, "ops": ["zeros"], "eps": 0.01, "ndigits": 16}},
    "steps per file": {"config": {**EVERYTHING, "step_count_per_record": 3}, "steps": 5},
    "schedule": {"config": {**EVERYTHING, "start_step": 1, "step_interval": 2, "collect_times": 2}, "steps": 7},
    "start iteration": {"config": {**EVERYTHING, "start_step": 1, "step_interval": 2}, "start": 10},
    "chunks": {"config": EVERYTHING, "model": "chunks"},
    "module targets": {
        "config": {**EVERYTHING, "targets": {"0:decoder.layers.1": {}, "final_norm": {}, "0:final_norm": {}}},
        "model": "gpt",
    },
    "parameter target": {"config": {**EVERYTHING, "targets": {"embedding.word.weight": {}}}, "model": "gpt"},
    "all_xy with targets": {
        "config": {**EVERYTHING, "targets": {"0:output_layer": {}}, "all_xy": True},
        "model": "gpt",
    },
    "squashed names": {"config": {**EVERYTHING, "squash_name": True}, "model": "gpt"},
    "whole names among squashed ones": {
        "config": {
            **EVERYTHING,
            "squash_name": True,
            "targets": {"0:decoder.layers.1.mlp": {}, "0:decoder.layers.0.norm1": {}, "0:layers.0.proj": {}},
        },
        "model": "gpt",
    },
    "groups of parameters": {"config": EVERYTHING, "model": "gpt", "optimizer": "groups"},
    "id among the ops": {"config": {**EVERYTHING, "ops": ["norm", "id", "min"]}},
    "id alone": {"config": {**EVERYTHING, "ops": ["id"]}, "model": "gpt"},
    "bools and whole numbers": {"config": EVERYTHING, "model": "masked"},
    "attention s,b,h,d": {
        "config": {**FEATURES, "l2_targets": {"attention_hook": ATTENTION}},
        "model": "gpt",
        "accumulate": 2,
    },
    "attention b,s,h,d": {
        "config": {**FEATURES, "l2_targets": {"attention_hook": ATTENTION}, "sa_order": "b,s,h,d"},
        "model": "gpt/b,s,h,d",
    },
    "linear layers": {"config": {**FEATURES, "l2_targets": {"linear_hook": []}}, "model": "gpt", "accumulate": 2},
    "routers": {
        "config": {
            **FEATURES,
            "l2_targets": {
                "moe_router_weight_hook": ["0:decoder.layers.0.proj"],
                "moe_router_logit_hook": ["0:decoder.layers.0.proj"],
            },
        },
        "model": "gpt",
    },
    "micro-batches": {"config": {**GRADIENTS, "monitor_mbs_grad": True}, "accumulate": 2},
    "stacks": {"config": {"stack_info": True}, "model": "gpt"},
    "structure": {"config": {"print_struct": True}, "model": "gpt"},
    "alarms": {
        "config": {
            **GRADIENTS,
            "xy_distribution": True,
            "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.05}}], "dump": True},
        },
        "model": "gpt",
        "steps": 6,
    },
    "alarms of large values": {
        "config": {
            **GRADIENTS,
            "alert": {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 0.02}}], "dump": True},
        },
    },
    "alarms of several statistics": {
        "config": {
            **GRADIENTS,
            "ops": ["max", "norm", "min", "mean"],
            "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.05}}], "dump": True},
        },
        "steps": 6,
    },
    "SGD": {"config": {**EVERYTHING, "mv_distribution": False, "mg_direction": False}, "optimizer": "sgd"},
}


@pytest.fixture(scope="session")
def trained(peer, tmp_path_factory):
    """All jobs under msprobe in one process of its own, and under vario here: a folder for each."""
    base = tmp_path_factory.mktemp("parity")
    folders = {}
    jobs = []
    for number, (name, job) in enumerate(JOBS.items()):
        folders[name] = base / f"msprobe-{number}", base / f"vario-{number}"
        jobs.append({**job, "monitor": "msprobe", "out": str(folders[name][0])})
    (base / "jobs.json").write_text(json.dumps(jobs))
    done = run_warm([training.__file__, base / "jobs.json"], env=peer("26.2.0"))
    assert done.returncode == 0, done.stderr[-4000:]
    # As many threads as there: a sum over two threads differs in its last digit, and Adam makes much of that.
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, job in JOBS.items():
        with contextlib.suppress(StructureSaved):
            training.train({**job, "monitor": "vario", "out": str(folders[name][1])})
    torch.set_num_threads(num_threads)
    return folders


DIFFERENT = ("micro-batches", "stacks", "structure")
"""Compared by tests of their own."""


@pytest.mark.parametrize("name", [name for name in JOBS if name not in DIFFERENT])
def test_the_same_files_with_the_same_rows(trained, name):
    theirs, ours = trained[name]
    error = Path(f"{theirs}.error")
    assert not error.exists(), error.read_text()
    expected, found = reading.files(theirs), reading.files(ours)
    assert list(found) == list(expected)
    for file in expected:
        compare(file, expected[file], found[file])


def compare(file, expected, found):
    assert found[0] == expected[0], file
    num_keys = found[0].index("micro_step" if "micro_step" in found[0] else "step") + 1
    named = {tuple(row[:num_keys]): row[num_keys:] for row in expected[1] if not is_hole(row[num_keys:])}
    ours = {tuple(row[:num_keys]): row[num_keys:] for row in found[1]}
    if file.startswith("actv_grad"):
        # Its hooks make a gradient of False for what has none.
        named = {key: cells for key, cells in named.items() if "torch.bool" not in cells}
    # msprobe writes a row of "nan" for the None in a tuple; there is no tensor, and no row here.
    assert set(ours) == set(named), file
    # Its backward hooks wait for a whole module; here a gradient stands where it came.
    assert list(ours) == list(named) or file.startswith("actv_grad"), file
    for key, cells in named.items():
        for column, cell, own in zip(found[0][num_keys:], cells, ours[key], strict=True):
            # Of a tensor of bools it has no share of zeros.
            is_unknown = column == "zeros" and "torch.bool" in cells
            if not file.startswith("linear_hook") and not is_unknown:
                assert is_same(cell, own), (file, key, column, cell, own)
        if file.startswith("linear_hook"):
            # msprobe's largest singular value comes from three power iterations from a random vector, so it is too
            # low by anything up to a third; its product with sr is the Frobenius norm all the same.
            (their_rank, their_norm), (rank, norm) = map(float, cells), map(float, ours[key])
            assert norm >= their_norm * (1 - 1e-5)
            assert math.isclose(rank * norm, their_rank * their_norm, rel_tol=1e-5)


def is_hole(cells):
    return all(cell == "nan" for cell in cells)


def is_same(cell, own):
    try:
        expected, found = float(cell), float(own)
    except ValueError:
        return cell == own
    # Their statistics are computed in float64 but printed with 16 decimals, which is all a small value has.
    return math.isclose(expected, found, rel_tol=1e-5, abs_tol=1e-15) or (math.isnan(expected) and math.isnan(found))


def test_a_job_that_records_nothing_leaves_an_empty_folder(trained):
    theirs, ours = trained["both only"]
    assert list(reading.rank_folder(theirs).iterdir()) == list(reading.rank_folder(ours).iterdir()) == []


def test_micro_batches_have_the_same_rows_and_the_first_one_the_same_values(trained):
    theirs, ours = (reading.rows(out, "grad_unreduced") for out in trained["micro-batches"])
    assert [list(row)[:4] for row in ours] == [list(row)[:4] for row in theirs]
    for expected, found in zip(theirs, ours, strict=True):
        assert (found["name"], found["step"], found["micro_step"]) == (
            expected["name"],
            expected["step"],
            expected["micro_step"],
        )
        # Later ones are sums of all before them under msprobe, and a micro-batch's own here, as documented.
        assert is_same(expected["norm"], found["norm"]) == (found["micro_step"] == "0")


def test_the_same_modules_have_stacks_that_name_the_same_place(trained):
    theirs, ours = (dict(reading.read_csv(reading.rank_folder(out) / "stack_info.csv")[1]) for out in trained["stacks"])
    assert list(ours) == list(theirs)
    for name, stack in ours.items():
        own_lines = [line for line in stack.splitlines() if "training.py" in line]
        # The innermost frames in the script are the same lines of code.
        expected = [line for line in theirs[name].splitlines() if "training.py" in line]
        assert own_lines
        assert own_lines[: len(own_lines) - 2] == expected[: len(own_lines) - 2]


def test_the_same_structure(trained):
    theirs, ours = (
        json.loads((out / "module_struct" / "rank0" / "module_struct.json").read_text()) for out in trained["structure"]
    )
    # A ModuleList is never called, so it has none.
    theirs = {name: found for name, found in theirs.items() if found}
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        for side, struct in expected.items():
            # msprobe says list where its manual says tuple.
            config = struct["config"].replace("list[", "tuple[") if side == "input" else struct["config"]
            assert ours[name][side] == {**struct, "config": config}, (name, side)


@pytest.mark.parametrize("name", ["alarms", "alarms of large values", "alarms of several statistics"])
def test_the_same_alarms(trained, name):
    theirs, ours = (
        json.loads((out / "anomaly_detected" / "rank0" / "anomaly.json").read_text()).values() for out in trained[name]
    )
    assert len(ours) > 10
    fields = ("rank", "step", "pp_stage", "vpp_stage", "tag_name", "group_mates")
    assert sorted(str([entry[field] for field in fields]) for entry in ours) == sorted(
        str([entry[field] for field in fields]) for entry in theirs
    )
    messages = {(entry["tag_name"], entry["step"]): entry["message"] for entry in ours}
    for entry in theirs:
        # Of several statistics the last stays.
        start = entry["message"].partition(", current value")[0]
        assert messages[entry["tag_name"], entry["step"]].startswith(start)
