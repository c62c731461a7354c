"""Collectives as the tap sees them: values against what each case of collective_cases.py knows, on two ranks."""

import json
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import vario
from releases import FSDP2_ON_CPU
from starting import run_ranks
from vario.backends.torch.collectives.results import Result, Waiting
from vario.core.package import is_own_file
from watching import check_summaries, watch

HERE = Path(__file__).parent
CASES = HERE / "collective_cases.py"
COLUMNS = ("count", "sum", "sum_squares", "min", "max", "nans", "infs", "zeros")
NAMES = CASES.read_text().partition("CASES = [\n")[2].partition("]")[0].replace(" ", "").replace(",", "").split()

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One launch for all."""
    place = tmp_path_factory.mktemp("collectives")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
    done = run_ranks([CASES, place], env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return place


@pytest.fixture(scope="module")
def run(folder):
    return vario.open_run(folder / "all")


def said(folder, rank=0):
    return json.loads((folder / f"said{rank}.json").read_text())


def skip_if_lacking(folder, case):
    """Skip a test of a case that this torch cannot run."""
    if reason := said(folder)["lacking"].get(case):
        pytest.skip(reason)


def test_recent_releases_run_every_case(folder):
    assert not FSDP2_ON_CPU or set(said(folder)["lacking"]) <= {"deepspeed_zero"}


def line_of(text):
    """The only line of the cases with this text in it."""
    (found,) = [number for number, line in enumerate(CASES.read_text().splitlines(), 1) if text in line]
    return found


def rows_at(run, step, rank):
    table = run.to_arrow("communication", rank).to_pylist()
    return {
        row["target"]: [np.nan if row[name] is None else row[name] for name in COLUMNS]
        for row in table
        if row["step"] == step
    }


def matching(rows, name):
    """Rows of `operation:side`, or of `operation#2:side` for the second of its kind at a place."""
    operation, _, side = name.partition(":")
    operation, _, number = operation.partition("#")
    ending = f"]#{number}:{side}" if number else f"]:{side}"
    return [row for target, row in rows.items() if target.startswith(f"{operation}@") and target.endswith(ending)]


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", NAMES)
def test_inputs_and_outputs_are_what_the_case_knows(folder, run, case, rank):
    skip_if_lacking(folder, case)
    rows = rows_at(run, NAMES.index(case), rank)
    for name, summary in said(folder, rank)["expected"][case].items():
        found = matching(rows, name)
        if summary is None:
            assert not found, name
            continue
        assert len(found) == 1, (name, sorted(rows))
        if summary:
            check_summaries(found[0], summary)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_buffer_that_is_only_written_has_no_input(run, rank):
    for case, name in (("send_and_recv", "recv:input"), ("broadcast", "broadcast:input"), ("scatter", "scatter:input")):
        is_sender = rank == (1 if case == "broadcast" else 0)
        rows = rows_at(run, NAMES.index(case), rank)
        assert len(matching(rows, name)) == (is_sender and case != "send_and_recv"), case
    everything = run.to_arrow("communication", rank).to_pylist()
    assert not [row["target"] for row in everything if row["nans"] or row["infs"]]


def test_seconds_count_the_calls(run):
    rows = rows_at(run, NAMES.index("async_results_are_overwritten_right_after_the_wait"), 0)
    ((count, total, _, low, high, *_),) = matching(rows, "all_reduce:seconds")
    assert count == 50
    assert 0 < low <= total / 50 <= high


def test_a_series_and_what_its_target_is_can_be_read(folder, run):
    skip_if_lacking(folder, "reduce_scatter")
    place = f"collective_cases.py[{line_of('dist.reduce_scatter(x, ')}]"
    target = f"reduce_scatter@{place}"
    assert run.series(f"{target}:output", "communication", "norm").steps.tolist() == [NAMES.index("reduce_scatter")]
    (found,) = [collective for collective in run.collectives(rank=1) if collective.target == target]
    assert (found.operation, found.group, found.ranks, found.dtype) == ("reduce_scatter", "0", (0, 1), "float32")
    assert (found.num_bytes, found.is_async) == (48, False)
    assert found.site.endswith(place)
    # What the ranks are copies of has frames below those of the script.
    functions = [line.rpartition(" ")[2] for line in found.stack if "warm_process.py" not in line]
    assert functions[-3:] == ["reduce_scatter", "main", "<module>"]
    assert not any(is_own_file(line.partition("[")[0]) for line in found.stack)


@pytest.mark.parametrize(
    ("text", "is_async"),
    [
        ("dist.all_reduce(x, async_op=True).wait()", True),
        ("dist.recv(x, 0)", False),
        ("received, sent =", True),
    ],
)
def test_it_is_known_whether_the_caller_goes_on_at_once(run, text, is_async):
    ending = f"collective_cases.py[{line_of(text)}]"
    assert {found.is_async for found in run.collectives(rank=1) if found.site.endswith(ending)} == {is_async}


def test_calls_at_one_place_that_differ_in_group_or_dtype_are_told_apart(run):
    ending = f"collective_cases.py[{line_of('dist.all_reduce(x, group=group)')}]"
    found = [collective for collective in run.collectives() if collective.site.endswith(ending)]
    assert [collective.target.partition("]")[2] for collective in found] == ["", "#2", "#3"]
    assert [collective.dtype for collective in found] == ["float32", "float64", "float32"]
    assert found[0].group == found[1].group != found[2].group


def test_ddp_is_on_the_line_of_its_backward(run):
    rows = rows_at(run, NAMES.index("ddp_whose_gradients_are_overwritten_right_after_backward"), 0)
    (target,) = [target for target in rows if target.startswith("all_reduce@") and target.endswith(":output")]
    number = int(target.partition("[")[2].partition("]")[0])
    assert ".backward()" in CASES.read_text().splitlines()[number - 1]


def test_only_calls_at_the_named_places_are_recorded_and_two_monitors_follow_at_once(folder):
    some = vario.open_run(folder / "some")
    places = [line_of("dist.all_gather(parts, mine())"), line_of("dist.broadcast(x, 1)")]
    expected = [f"all_gather@collective_cases.py[{places[0]}]", f"broadcast@collective_cases.py[{places[1]}]"]
    assert sorted({target.rpartition(":")[0] for target in some.targets("communication")}) == expected
    assert [collective.target for collective in some.collectives()] == expected


@pytest.mark.parametrize("rank", [0, 1])
def test_what_fails_is_heard_by_the_caller_as_ever(folder, rank):
    failure = "Cannot use ReduceOp.BAND with non-integral dtype"
    assert said(folder, rank)["failures"] == [failure, "not at the call", failure]


def test_nothing_is_kept_for_a_handle_that_is_dropped(folder):
    assert said(folder, 0)["still alive"] == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_the_tap_is_there_while_somebody_follows_and_gone_after(folder, rank):
    found = said(folder, rank)
    assert found["registered before"] == found["registered after"] == []
    assert found["registered meanwhile"] == found["registered while one follows"] > 15
    assert found["wait is torch's own"]


@pytest.mark.parametrize("rank", [0, 1])
def test_weights_are_the_same_bit_by_bit_with_and_without(folder, rank):
    assert said(folder, rank)["trained alike"]


def test_what_is_sent_after_the_update_belongs_to_its_step(folder):
    rows = said(folder)["rows of the training"]
    line = line_of("# after the update, and of the same step")
    for side in ("input", "output", "seconds"):
        assert [step for step, target in rows if target == f"all_reduce@collective_cases.py[{line}]:{side}"] == [
            0,
            1,
            2,
            3,
        ]


def test_the_calls_of_two_steps_are_listed_in_the_log_of_the_leading_rank(folder):
    text = (folder / "log0.txt").read_text()
    line = line_of("# after the update, and of the same step")
    assert f"all_reduce@collective_cases.py[{line}]  1 x 4 B, float32, group 0 of 2 ranks\n" in text
    assert text.count("collectives of the first 2 steps:") == 2  # the two runs that follow something then
    assert (folder / "log1.txt").read_text() == ""


def test_results_nobody_waits_for_are_forgotten_from_the_oldest_on():
    class Handle:
        pass

    waiting = Waiting()
    tensors = [torch.zeros(1) for _ in range(1200)]
    handles = [Handle() for _ in tensors]
    for handle, tensor in zip(handles, tensors, strict=True):
        waiting.add(handle, Result([], [tensor], True, True, False))
    assert len(waiting) == 1024
    assert waiting.take(handles[0]) is None
    assert waiting.take(handles[-1]) is not None
    assert waiting.take(handles[-1]) is None
    assert waiting.take_of_tensor(tensors[-2]) is not None
    assert waiting.take(handles[-2]) is None
    del handles[300:], tensors[300:], handle, tensor
    waiting.add(Handle(), Result([], [torch.zeros(1)], True, True, False))
    assert len(waiting) <= 300


def test_without_a_process_group_nothing_is_recorded_and_nothing_fails(caplog):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with caplog.at_level(logging.INFO, "vario"), watch(model, optimizer, ["communication"]) as monitor:
        for step in range(3):
            model(torch.full((1, 2), 1.0 + step)).sum().backward()
            optimizer.step()
    assert [record.frames for record in monitor.sinks["in_memory"].records] == [[], [], []]
    assert not caplog.messages
