"""The zoo records real trainings, knows what it did to them, and scores any detector by that."""

import sys
from pathlib import Path

import numpy as np
import pytest

from thorough import thorough

# At the end: `zoo` is the only name this folder should add.
sys.path.append(str(Path(__file__).parents[2] / "bench"))

import vario
from zoo import healthy, peers
from zoo.faults import all_faults
from zoo.record import DEV_SEEDS, HELD_OUT_SEEDS, NOTE, fault_job, fault_runs, is_recorded, twin_job
from zoo.score import Incident, Line, failure_step, incidents_of, is_same_place, losses_of, score_fault, score_healthy
from zoo.workers import record_all

FAULTS = ("lr_jump", "dead_relu")
SEED = 101  # both are then tried on the same small model, and share their twin


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("zoo")
    jobs = [job for fault in FAULTS for job in (fault_job(fault, SEED), twin_job(fault, SEED))]
    failures = record_all([*jobs, next(each.job for each in healthy.ALL if each.name == "mlp-resumed")], 1, runs, str)
    assert not failures, failures[0].error
    return runs


@pytest.fixture(scope="module")
def runs(folder):
    return {run.job.fault: run for run in fault_runs(FAULTS, [SEED], folder)}


def test_the_sheet_is_complete_and_more_than_16_faults_are_our_own():
    origins = [fault.origin for fault in all_faults().values()]
    assert origins.count("sheet") == 44
    assert origins.count("own") >= 16
    assert all(fault.__doc__ and fault.setups for fault in all_faults().values())


def test_there_are_more_than_30_healthy_runs_and_twenty_of_them_are_held_out():
    ordinary = [each for each in healthy.ALL if not each.is_benign_change]
    held_out = [each for each in ordinary if each.is_held_out]
    assert len(ordinary) >= 30
    assert len(held_out) >= 20
    assert not {each.job.seed for each in held_out} & {each.job.seed for each in ordinary if not each.is_held_out}


def test_no_two_runs_of_the_zoo_share_a_folder():
    seeds = (*DEV_SEEDS, *HELD_OUT_SEEDS)
    names = [fault_job(fault, seed).name for fault in all_faults() for seed in seeds]
    assert len(set(names)) == len(names)


def test_a_recorded_run_is_an_ordinary_run_folder(runs):
    run = vario.open_run(runs["lr_jump"].path)
    assert run.last_step == 259
    assert {"gradient", "weight", "activation", "update", "unit"} <= set(run.quantities())
    assert {"loss", "grad_norm"} <= set(run.targets("scalar"))
    assert not run.parts_off


def test_a_weight_changed_from_outside_leaves_a_trace_and_its_twin_has_none(runs):
    run = runs["dead_relu"]
    (target,) = vario.open_run(run.path).targets("unexpected_change")
    assert is_same_place(target, run.truth.site)
    assert "unexpected_change" not in vario.open_run(run.twin).quantities()


def test_a_fault_run_equals_its_twin_until_the_fault(runs):
    for run in runs.values():
        own, twin, t0 = losses_of(run.path), losses_of(run.twin), run.truth.t0
        assert 60 <= t0 <= 180
        assert np.array_equal(own[:t0], twin[:t0])
        assert not np.array_equal(own[t0:], twin[t0:])


def test_what_was_recorded_is_not_recorded_again(runs, folder):
    told = []
    assert not record_all([runs["lr_jump"].job], 1, folder, told.append)
    assert not told


@thorough
def test_a_run_without_its_note_was_never_finished_and_is_recorded_again(runs, folder):
    job = runs["dead_relu"].job
    (folder / job.name / NOTE).unlink()
    assert not is_recorded(job, folder)
    assert not fault_runs(["dead_relu"], [SEED], folder)
    assert not record_all([job], 1, folder, str)
    assert is_recorded(job, folder)


def omniscient(*runs):
    said = {run.path: run.truth for run in runs}

    def detect(path):
        truth = said.get(path)
        words = ("learning rate",) if truth and truth.scope == "global" else ()
        return [Incident(truth.t0 + 2, "oracle", truth.site, truth.rank, truth.scope, words)] if truth else []

    return detect


def test_a_detector_that_knows_everything_scores_full_marks(runs):
    for run in runs.values():
        score = score_fault(omniscient(run), run)
        assert (score.is_detected, score.is_usable, score.delay) == (True, True, 2)
        assert (score.is_right_place, score.is_right_cause) == (
            (None, True) if run.truth.site is None else (True, None)
        )


def test_what_the_twin_raises_as_well_does_not_count(runs):
    run = runs["lr_jump"]
    always = lambda path: [Incident(run.truth.t0, "noise", lines=(Line(run.truth.t0, "noise"),))]  # noqa: E731
    assert not score_fault(always, run).is_detected


def test_alarms_on_the_twin_make_a_detection_unusable(runs):
    run = runs["lr_jump"]

    def detect(path):
        step = run.truth.t0 if path == run.path else run.truth.t0 - 30
        return [Incident(step, "rule", "other" if path == run.twin else None)]

    score = score_fault(detect, run)
    assert score.is_detected
    assert not score.is_usable


def test_blaming_a_tensor_for_the_learning_rate_is_the_wrong_cause(runs):
    run = runs["lr_jump"]

    def detect(path):
        said = Incident(run.truth.t0, "spike", "head.weight", scope="tensor", cause=("learning rate",))
        return [said] if path == run.path else []

    assert score_fault(detect, run).is_right_cause is False


def test_the_peers_look_at_recorded_runs(runs):
    run = runs["dead_relu"]
    found = {name: score_fault(detector, run) for name, detector in peers.DETECTORS.items() if "vario" not in name}
    assert found["z-score 3"].is_detected
    assert found["msprobe Turbulence 0.5 + Nan"].is_detected
    assert not found["msprobe Turbulence 0.5 + Nan"].is_usable
    assert not found["NaN in loss (Composer)"].is_detected


def test_incidents_are_ten_quiet_steps_apart(folder):
    lines = [Line(step, "rule") for step in (5, 6, 16, 27, 90)]
    assert [incident.step for incident in incidents_of(lines)] == [5, 27, 90]
    resumed = next(each for each in healthy.ALL if each.name == "mlp-resumed")
    (run,) = [found for found in healthy.healthy_runs(False, runs=folder) if found.job == resumed.job]
    score = score_healthy(lambda path: [Incident(5, "rule", lines=tuple(lines))], run)
    assert (score.steps, score.incidents, score.lines) == (260, 3, 5)


def test_a_list_of_all_layers_is_no_place():
    assert is_same_place("blocks.0.mlp.up.weight", "blocks.0.mlp")
    assert is_same_place("blocks.0", "blocks.0.mlp.up.weight")
    assert not is_same_place("blocks", "blocks.0.mlp.up.weight")
    assert not is_same_place("blocks.1", "blocks.10")


def test_the_loss_has_failed_when_it_stays_above_the_twins():
    twin = 2 + 0.01 * np.sin(np.arange(200))
    broken = twin + np.where(np.arange(200) >= 120, 0.5, 0)
    assert failure_step(broken, twin, 100) == 120
    assert failure_step(twin, twin, 100) is None
    assert failure_step(np.where(np.arange(200) >= 150, np.nan, twin), twin, 100) == 150
