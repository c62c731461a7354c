"""A quantity of very many targets is compared as any other, in less memory."""

import numpy as np

import little_trainings
import vario
from vario.runs.findings import changes
from vario.runs.findings.changes import rank_changes
from vario.runs.views.grid import read_big_grid, read_grid


def trained(path):
    return vario.open_run(little_trainings.train(path, steps=60, fault=little_trainings.scale_a_weight, fault_step=55))


def test_a_big_grid_has_the_numbers_of_a_grid(tmp_path):
    run = trained(tmp_path / "run")
    small, big = read_grid(run, "weight", 20), read_big_grid(run, "weight", 20)
    assert small.steps.tolist() == big.steps.tolist() == list(range(20, 60))
    assert sorted(small.targets) == sorted(big.targets)
    assert small.statistics.keys() == big.statistics.keys()
    rows = [big.targets.index(name) for name in small.targets]
    for name, values in small.statistics.items():
        np.testing.assert_allclose(big.statistics[name][rows], values, rtol=1e-5, atol=1e-9)


def test_what_changed_is_the_same_however_many_targets_there_are(tmp_path, monkeypatch):
    run = trained(tmp_path / "run")
    usual = {(one.quantity, one.target, one.kind, one.step) for one in rank_changes(run, 5).changes}
    monkeypatch.setattr(changes, "FEW_CELLS", 0)
    found = {(one.quantity, one.target, one.kind, one.step) for one in rank_changes(run, 5).changes}
    assert usual == found
    assert any(target == "blocks.1.0.weight" for _, target, _, _ in usual)


def test_only_so_many_points_are_compared_as_fit_into_memory(tmp_path, monkeypatch):
    run = trained(tmp_path / "run")
    monkeypatch.setattr(changes, "MOST_CELLS", 1)
    seen = {len(one.values) for one in rank_changes(run, 50).changes if one.quantity != "scalar"}
    assert seen == {changes.LEAST_WINDOW * (1 + changes.BASE_WINDOWS)}
