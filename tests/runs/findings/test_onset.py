import numpy as np
import pytest

from made_runs import NAMES, frame, record, small_parts, tensor, write_run
from vario.runs.findings.onset import first_bad
from vario.runs.run import open_run

NAN, INF = np.full(16, np.nan), np.array([np.inf, 1.0])
MODULES = ("a:input", "a:output", "b:input", "b:output")


def step_record(step, activations=None, gradients=None, **scalars):
    return record(
        step,
        frame(step, "activation", MODULES, order=0, tensors=activations),
        frame(step, "gradient", order=4, tensors=gradients),
        **scalars,
    )


@pytest.fixture(params=["live", "parts"])
def run_of(request, tmp_path):
    def write(records, **changes):
        live = request.param == "live"
        write_run(
            tmp_path / "run", records, None if live else small_parts(), close=None if live else "finished", **changes
        )
        return open_run(tmp_path / "run")

    return write


def test_a_healthy_run_has_no_onset(run_of):
    assert first_bad(run_of([step_record(step) for step in range(9)])) is None


def test_the_first_bad_row_is_found_by_step_then_order(run_of):
    records = [step_record(step) for step in range(6)]
    records.append(step_record(6, {"b:output": INF}, {"head.weight": NAN, "embed.weight": NAN}, loss=np.nan))
    records += [step_record(step, dict.fromkeys(MODULES, NAN), dict.fromkeys(NAMES, NAN)) for step in range(7, 12)]
    onset = first_bad(run_of(records))
    assert (onset.step, onset.quantity, onset.target, onset.rank) == (6, "activation", "b:output", 0)
    assert (onset.nans, onset.infs, onset.count) == (0, 1, 2)
    assert onset.inputs_were_finite is True
    assert onset.usual.step == 5
    assert onset.usual.norm == pytest.approx(np.linalg.norm(tensor(5, "b:output")))
    assert onset.usual.absmax == pytest.approx(np.abs(tensor(5, "b:output")).max())
    assert [(row.step, row.quantity, row.target) for row in onset.chain[:4]] == [
        (6, "gradient", "embed.weight"),
        (6, "gradient", "head.weight"),
        (6, "scalar", "loss"),
        (7, "activation", "a:input"),
    ]
    assert len({(row.quantity, row.target) for row in onset.chain}) == len(onset.chain)


def test_bad_inputs_are_told_from_bad_modules(run_of):
    onset = first_bad(run_of([step_record(0), step_record(1, {"b:input": NAN, "b:output": NAN})]))
    assert (onset.target, onset.inputs_were_finite) == ("b:input", None)


def test_bad_at_the_first_step_has_nothing_usual(run_of):
    onset = first_bad(run_of([step_record(0, {"a:output": NAN})]))
    assert (onset.target, onset.usual) == ("a:output", None)


def test_a_number_that_is_not_finite_counts(run_of):
    onset = first_bad(run_of([step_record(0, loss=3.0), step_record(1, loss=-np.inf)]))
    assert (onset.step, onset.quantity, onset.target, onset.nans, onset.infs) == (1, "scalar", "loss", 0, 1)
    assert (onset.usual.step, onset.usual.absmax) == (0, 3.0)


def test_the_earliest_rank_counts_unless_one_is_chosen(tmp_path):
    for rank, start in ((0, 4), (1, 2)):
        records = [
            record(step, frame(step, rank=rank, tensors={"head.weight": NAN} if step >= start else {}))
            for step in range(6)
        ]
        write_run(tmp_path / "run", records, rank=rank, world_size=2)
    run = open_run(tmp_path / "run")
    onset = first_bad(run)
    assert (onset.rank, onset.step) == (1, 2)
    assert first_bad(run, rank=0).step == 4


def test_what_was_taken_back_is_no_onset(tmp_path):
    bad = [record(step, frame(step, tensors={"head.weight": NAN} if step > 3 else {})) for step in range(6)]
    write_run(tmp_path / "run", bad, small_parts())
    write_run(tmp_path / "run", [record(step) for step in range(3, 8)], small_parts(), resume=True, first_step=3)
    assert first_bad(open_run(tmp_path / "run")) is None


def test_columns_that_were_not_recorded_leave_the_usual_open(tmp_path):
    records = [record(0), record(1, frame(1, tensors={"head.weight": NAN}))]
    write_run(tmp_path / "run", records, config={"statistics": ["mean"]})
    usual = first_bad(open_run(tmp_path / "run")).usual
    assert (usual.step, usual.norm, usual.absmax) == (0, None, None)
