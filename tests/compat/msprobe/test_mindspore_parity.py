"""The same training with MindSpore under msprobe and under vario, file by file, as `test_parity` does for torch.

mindstudio-probe runs on a CPU without `norm`, which has no kernel there, and with optimizers of
`mindspore.experimental` and `mindspore.mint`; those of `mindspore.nn` are compiled, and it cannot wrap them.
"""

import json
import math
import os
from pathlib import Path

import pytest
import reading
from test_parity import is_same

from thorough import cases, wanted

HERE = Path(__file__).parent
OPS = ["min", "max", "mean", "zeros", "nans"]
SQUASHED = {"squash_name": True, "ops": OPS, "ndigits": 16}
"""msprobe always shortens names on MindSpore."""
EVERYTHING = {
    "targets": {},
    "wg_distribution": True,
    "param_distribution": True,
    "xy_distribution": True,
    **SQUASHED,
}
TURBULENCE = {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.01}}], "dump": True}

JOBS = {
    "everything": {"config": EVERYTHING},
    "sgd": {"config": EVERYTHING, "optimizer": "sgd"},
    "gpt with accumulation": {"config": EVERYTHING, "model": "gpt", "accumulate": 2, "steps": 2},
    "accumulation": {"config": EVERYTHING, "accumulate": 3},
    "chunks": {"config": EVERYTHING, "model": "chunks"},
    "forward only": {"config": {**EVERYTHING, "forward_only": True}},
    "backward only": {"config": {**EVERYTHING, "backward_only": True}},
    "moments": {"config": {"targets": {}, "mv_distribution": True, **SQUASHED}},
    "no valid ops": {"config": {"targets": {}, "param_distribution": True, **SQUASHED, "ops": ["shape", "max"]}},
    "large eps": {"config": {"targets": {}, "wg_distribution": True, **SQUASHED, "ops": ["zeros"], "eps": 0.01}},
    "few digits": {"config": {**EVERYTHING, "ndigits": 3}},
    "steps per file": {"config": {**EVERYTHING, "step_count_per_record": 3}, "steps": 5},
    "schedule": {"config": {**EVERYTHING, "start_step": 1, "step_interval": 2, "collect_times": 2}, "steps": 7},
    "module targets": {
        "config": {**EVERYTHING, "targets": {"0:decoder.layers.1": {}, "final_norm": {}}},
        "model": "gpt",
        "steps": 1,
    },
    "parameter target": {
        "config": {**EVERYTHING, "targets": {"embedding.embedding_table": {}}},
        "model": "gpt",
        "steps": 1,
    },
    "all_xy with targets": {
        "config": {**EVERYTHING, "targets": {"0:output_layer": {}}, "all_xy": True},
        "model": "gpt",
        "steps": 1,
    },
    "micro-batches": {
        "config": {"targets": {}, "wg_distribution": True, "monitor_mbs_grad": True, **SQUASHED},
        "accumulate": 2,
    },
    "stacks": {"config": {"targets": {}, "stack_info": True, "squash_name": True}, "model": "gpt", "steps": 1},
    "structure": {"config": {"targets": {}, "print_struct": True, "squash_name": True}, "model": "gpt"},
    "alarms": {"config": {**EVERYTHING, "alert": TURBULENCE}, "steps": 5},
    "hole": {"config": {"targets": {}, "xy_distribution": True, **SQUASHED}, "model": "hole", "steps": 1},
    "dynamic": {
        "config": {**EVERYTHING, "dynamic_on": False},
        "changes": {
            "1": {**EVERYTHING, "dynamic_on": True, "collect_times": 2},
            "5": {**EVERYTHING, "dynamic_on": True, "collect_times": 1, "wg_distribution": False},
        },
        "dynamic": True,
        "steps": 9,
    },
    "norm": {"config": {"targets": {}, "param_distribution": True, **SQUASHED, "ops": ["norm"]}},
    "nn.Adam": {"config": {"targets": {}, "param_distribution": True, **SQUASHED}, "optimizer": "nn.Adam"},
    "nn.Momentum": {"config": {"targets": {}, "param_distribution": True, **SQUASHED}, "optimizer": "nn.Momentum"},
}
NOT_ON_A_CPU = {"norm": "LinalgVectorNorm unregistered", "nn.Adam": "pre_step_hooks", "nn.Momentum": "pre_step_hooks"}
OTHERS = ("moments", "stacks", "structure", "hole", "dynamic")
"""Compared by tests of their own."""
SAME_ON_TORCH = ("sgd", "backward only", "no valid ops", "steps per file", "schedule", "parameter target")
"""Options that no backend sees: `test_parity` shows them with torch in every run of the tests."""
OLDER = ("everything", "accumulation", "micro-batches", "alarms")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(request, peer, mindspore, tmp_path_factory):
    """Folders by job: under msprobe 26.2.0, under 8.3.0, under vario."""
    base = tmp_path_factory.mktemp("parity")
    needed = mindspore("-c", "import matplotlib, tqdm", cwd=base, check=False)
    if needed.returncode:
        pytest.fail("mindstudio-probe needs matplotlib and tqdm in .mindspore: run `make mindspore`")
    asked_for = wanted(request, JOBS, set(JOBS) - set(SAME_ON_TORCH))
    folders = {}
    for who in ("26.2.0", "8.3.0", "vario"):
        monitor = "vario" if who == "vario" else "msprobe"
        names = [name for name in asked_for if who != "8.3.0" or name in OLDER]
        folders[who] = {name: base / who / str(number) for number, name in enumerate(names)}
        jobs = [{**JOBS[name], "monitor": monitor, "out": str(folders[who][name])} for name in names]
        (base / f"{who}.json").write_text(json.dumps(jobs))
        path = {} if who == "vario" else {"PYTHONPATH": _without_older(peer(who)["PYTHONPATH"])}
        mindspore(HERE / "mindspore_training.py", base / f"{who}.json", cwd=base, **path)
    return folders


def _without_older(path):
    """MindSpore's environment has the NumPy and pandas that older releases need."""
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if not folder.endswith("older"))


COMPARED = [name for name in JOBS if name not in (*OTHERS, *NOT_ON_A_CPU)]


@pytest.mark.parametrize("name", cases(COMPARED, set(COMPARED) - set(SAME_ON_TORCH)))
def test_the_same_files_with_the_same_rows(trained, name):
    job = JOBS[name]
    accumulates = "accumulate" in job and not job["config"].get("monitor_mbs_grad")
    compare_files(trained["26.2.0"][name], trained["vario"][name], job["config"]["ndigits"], accumulates)


@pytest.mark.parametrize("name", OLDER)
def test_the_same_files_as_an_older_release(trained, name):
    compare_files(trained["8.3.0"][name], trained["vario"][name], accumulates=name == "accumulation")


def compare_files(theirs, ours, digits=16, accumulates=False):
    for out in (theirs, ours):
        error = Path(f"{out}.error")
        assert not error.exists(), error.read_text()
    expected, found = reading.files(theirs), reading.files(ours)
    assert list(found) == list(expected)
    assert found
    for file, (header, rows) in expected.items():
        assert found[file][0] == header, file
        if accumulates and file.startswith("grad_unreduced"):
            # Theirs are those of the last micro-batch alone; here, as on torch, the sum that the update uses.
            rows = expected[file.replace("unreduced", "reduced")][1]
        compare_rows(file, header, rows, found[file][1], digits)


def compare_rows(file, header, expected, found, digits=16):
    num_keys = header.index("micro_step" if "micro_step" in header else "step") + 1
    named, ours = ({tuple(row[:num_keys]): row[num_keys:] for row in rows} for rows in (expected, found))
    # MindSpore hands over all gradients of a backward pass at once: in the order of the model.
    has_own_order = file.startswith(("grad_unreduced", "actv_grad"))
    assert (sorted(ours) == sorted(named)) if has_own_order else (list(ours) == list(named)), file
    for key, cells in named.items():
        for column, cell, own in zip(header[num_keys:], cells, ours[key], strict=True):
            assert is_close(column, cell, own, digits), (file, key, column, cell, own)


def is_close(column, cell, own, digits):
    if is_same(cell, own):
        return True
    # Their means are sums in float32, and what they print is rounded to so many decimals.
    limit = 2e-7 if column == "mean" else 0.0
    return column not in ("shape", "dtype") and math.isclose(
        float(cell), float(own), abs_tol=limit + 0.51 * 10**-digits
    )


@pytest.mark.parametrize("name", NOT_ON_A_CPU)
def test_what_msprobe_cannot_do_on_a_cpu_is_recorded_here(trained, name):
    assert NOT_ON_A_CPU[name] in Path(f"{trained['26.2.0'][name]}.error").read_text()
    found = reading.files(trained["vario"][name])
    assert sorted(found) == sorted(
        f"param_{which}_{step}-{step}.csv" for which in ("origin", "updated") for step in range(3)
    )
    assert all(len(rows) == 4 for _, rows in found.values())


def test_moments_have_the_same_values_and_a_stage(trained):
    theirs, ours = reading.files(trained["26.2.0"]["moments"]), reading.files(trained["vario"]["moments"])
    assert list(ours) == list(theirs)
    for file, (header, rows) in theirs.items():
        assert ours[file][0] == header
        # Their rows begin with the name of the state and have no stage, so their columns are shifted by one; states
        # that an optimizer has and does not use (`max_exp_avg_sq`) are among them.
        prefix = file.rpartition("_")[0]
        kept = [
            [_shortened(row[0], prefix), row[2], row[1], *row[3:]] for row in rows if row[0].startswith(f"{prefix}.")
        ]
        own = [[row[1], row[2], *row[3:]] for row in ours[file][1]]
        assert [row[:2] for row in own] == [row[:2] for row in kept]
        for mine, other in zip(own, kept, strict=True):
            assert all(is_close("mean", a, b, 16) for a, b in zip(other[2:], mine[2:], strict=True)), (
                file,
                mine,
                other,
            )


def _shortened(name, state):
    """`exp_avg.0.up.weight`: their state, the number that this training puts first, and the name."""
    return name.removeprefix(f"{state}.").partition(".")[2]


def test_the_same_cells_have_stacks_that_name_the_same_place(trained):
    theirs, ours = (
        dict(reading.read_csv(reading.rank_folder(trained[who]["stacks"]) / "stack_info.csv")[1])
        for who in ("26.2.0", "vario")
    )
    assert list(ours) == list(theirs)
    for name, stack in ours.items():
        own, expected = (
            [line for line in text.splitlines() if "mindspore_training.py" in line] for text in (stack, theirs[name])
        )
        assert own
        assert own == expected


def test_the_same_structure(trained):
    theirs, ours = (
        json.loads((trained[who]["structure"] / "module_struct" / "rank0" / "module_struct.json").read_text())
        for who in ("26.2.0", "vario")
    )
    theirs = {name: found for name, found in theirs.items() if found}  # a list of cells is never called
    assert set(ours) == set(theirs)
    for name, expected in theirs.items():
        for side, struct in expected.items():
            config = struct["config"].replace("list[", "tuple[") if side == "input" else struct["config"]
            assert ours[name][side] == {**struct, "config": config}, (name, side)


def test_a_tensor_without_a_gradient_does_not_shift_the_rows_after_it(trained):
    (header, theirs), (_, ours) = (
        reading.files(trained[who]["hole"])["actv_grad_0-0.csv"] for who in ("26.2.0", "vario")
    )
    shapes = {row[1]: row[header.index("shape")] for row in ours}
    assert shapes == {
        "down.output": "(7, 3)",
        "down.input": "(7, 4)",
        "halves.output_0": "(7, 4)",
        "halves.input": "(7, 8)",
        ".output": "(7, 3)",
        "up.output": "(7, 8)",
    }
    # There the numbers of one tensor stand in the row of another from there on.
    assert {row[1]: row[header.index("shape")] for row in theirs} != shapes


def test_dynamic_starts_and_stops_at_the_same_steps(trained):
    theirs, ours = (reading.files(trained[who]["dynamic"]) for who in ("26.2.0", "vario"))
    # After a dynamic start it has no activations: it counts the steps of cells from 0 again.
    expected = {name: content for name, content in theirs.items() if not name.startswith("actv")}
    assert sorted(expected) == sorted(name for name in ours if not name.startswith("actv"))
    assert {name.rpartition("_")[2] for name in ours if name.startswith("grad")} == {"2-2.csv", "3-3.csv"}
    for name, (header, rows) in expected.items():
        compare_rows(name, header, rows, ours[name][1])
    for step in (2, 3, 6):
        assert len(ours[f"actv_{step}-{step}.csv"][1]) == 8
        assert len(ours[f"actv_grad_{step}-{step}.csv"][1]) == 6


@pytest.mark.parametrize("release", ["26.2.0", "8.3.0"])
def test_the_same_alarms(trained, release):
    theirs, ours = (
        json.loads((trained[who]["alarms"] / "anomaly_detected" / "rank0" / "anomaly.json").read_text()).values()
        for who in (release, "vario")
    )
    assert len(ours) > 10
    fields = ("rank", "step", "pp_stage", "vpp_stage", "tag_name", "group_mates")
    found, expected = (sorted(str([entry[field] for field in fields]) for entry in each) for each in (ours, theirs))
    assert found == expected


def test_losses_are_bit_identical_with_and_without_a_monitor(trained, mindspore, tmp_path):
    watched = json.loads((trained["vario"]["everything"].parents[1] / "vario.losses.json").read_text())
    name = "gpt with accumulation"
    (tmp_path / "alone.json").write_text(
        json.dumps([{**JOBS[name], "monitor": "none", "out": str(tmp_path / "alone")}])
    )
    mindspore(HERE / "mindspore_training.py", tmp_path / "alone.json", cwd=tmp_path)
    (alone,) = json.loads((tmp_path / "alone.losses.json").read_text()).values()
    assert len(alone) == 2
    assert watched[str(trained["vario"][name])] == alone
