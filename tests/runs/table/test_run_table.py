"""Many runs as a table: columns, filters, sorting and groups, on the thirty runs of a sweep."""

import dataclasses

import numpy as np
import pytest

import vario
from sweep import RATES, SEEDS, WIDTHS
from vario.core.errors import ConfigError
from vario.runs.run import list_runs
from vario.runs.table.columns import Columns
from vario.runs.table.filters import compare
from vario.runs.table.summary import read_summary
from vario.runs.table.table import check_sort, make_table, select


@pytest.fixture(scope="module")
def runs(sweep):
    return [read_summary(run, run.name) for run in list_runs(sweep)]


def column(runs, key):
    return [row.values[0] for row in make_table(runs, [key]).rows]


def series(sweep, run, name):
    return vario.open_run(sweep / run).series(name, "scalar").values


def test_figures_of_a_number_are_those_of_its_series(runs, sweep):
    for key, expected in (
        ("val_loss", lambda values: values[-1]),
        ("val_loss:last", lambda values: values[-1]),
        ("val_loss:first", lambda values: values[0]),
        ("val_loss:min", np.min),
        ("val_loss:max", np.max),
        ("val_loss:best", np.min),
        ("accuracy:best", np.max),
    ):
        name = key.partition(":")[0]
        assert column(runs, key) == [expected(series(sweep, run.run, name)) for run in runs]


def test_a_column_is_found_by_its_title(runs):
    found = Columns(runs).find("best val_loss")
    assert found == dataclasses.replace(Columns(runs).find("val_loss:best"), read=found.read)
    assert column(runs, "best val_loss") == column(runs, "val_loss:best")


def test_hyper_parameters_are_columns_also_by_their_last_part(runs):
    assert sorted(set(column(runs, "lr"))) == list(RATES)
    assert column(runs, "params.lr") == column(runs, "optimizer.lr") == column(runs, "lr")
    assert set(column(runs, "momentum")) == {0.9}
    assert set(column(runs, "optimizer")) == {"SGD"}


def test_facts_are_columns(runs):
    assert set(column(runs, "state")) == {"finished"}
    assert column(runs, "name") == [run.name for run in runs]
    assert all(
        value > 0 for key in ("duration", "memory", "steps_per_second", "started") for value in column(runs, key)
    )
    assert set(column(runs, "progress")) == {1.0}


def test_steps_per_second_is_steps_over_time(runs, sweep):
    run = vario.open_run(sweep / runs[0].run)
    rows = run.to_arrow("scalar")
    times, steps = rows.column("time").to_numpy(), rows.column("step").to_numpy()
    last, first = steps.argmax(), steps.argmin()
    assert column(runs, "steps_per_second")[0] == (steps[last] - steps[first]) / (times[last] - times[first])


@pytest.mark.parametrize(
    ("where", "is_kept"),
    [
        ("", lambda lr, width, seed: True),
        ("lr > 0.01 and state = finished", lambda lr, width, seed: lr > 0.01),
        ("lr <= 1e-2 and width = 8", lambda lr, width, seed: lr <= 0.01 and width == 8),
        ("width in (4, 16) and not seed", lambda lr, width, seed: width in (4, 16) and not seed),
        ("lr = 0.3 or (lr = 0.1 AND width != 8)", lambda lr, width, seed: lr == 0.3 or (lr == 0.1 and width != 8)),
        ("name ~ w16 and name !~ '*s1'", lambda lr, width, seed: width == 16 and seed == 0),
        ("`params.seed` >= 1", lambda lr, width, seed: seed >= 1),
        ("act = TANH", lambda lr, width, seed: width < 16),
        ("error", lambda lr, width, seed: False),
        ("error = none and not error", lambda lr, width, seed: True),
    ],
)
def test_a_filter_lets_through_what_it_says(runs, where, is_kept):
    kept = {run.run for run in select(runs, Columns(runs), where)}
    expected = {
        f"lr{lr}-w{width}-s{seed}" for lr in RATES for width in WIDTHS for seed in SEEDS if is_kept(lr, width, seed)
    }
    assert kept == expected


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("lr >", "expected a value at character 5"),
        ("lr > 1 width = 2", "expected `and` or `or`, found 'width' at character 8"),
        ("(lr > 1", r"expected '\)'"),
        ("lrr > 1", "no run has 'lrr'. Did you mean 'lr'"),
        ("> 1", "expected a column"),
        ("name = 'open", "unfinished quote"),
        ("(" * 50 + "lr", "nested too deeply"),
        ("lr = 1 or " * 300, "at most 2000 characters"),
        ("__import__('os')", "no run has '__import__'"),
    ],
)
def test_a_wrong_filter_says_where(runs, where, text):
    with pytest.raises(ConfigError, match=text):
        select(runs, Columns(runs), where)


@pytest.mark.parametrize(
    ("value", "operator", "wanted", "expected"),
    [
        (None, "<", "1", False),
        (None, "!=", "1", True),
        (float("nan"), ">", "0", False),
        (float("nan"), "=", "nan", True),
        (True, "=", "true", True),
        ("b", ">", "a", True),
        ("b", ">", "1", False),
        (0.1 + 0.2, "=", "0.3", True),
    ],
)
def test_values_of_any_kind_can_be_compared(value, operator, wanted, expected):
    assert compare(value, operator, wanted) is expected


def test_sorting_puts_what_is_missing_last(runs):
    table = make_table(runs, ["val_loss:best", "lr"], sort=check_sort("lr desc, val_loss:best"))
    values = [row.values for row in table.rows]
    assert values == sorted(values, key=lambda pair: (-pair[1], pair[0]))
    assert len(make_table(runs, ["error"], sort=["error"]).rows) == 30


def test_groups_have_means_and_extremes(runs):
    table = make_table(runs, ["val_loss:best"], group="lr")
    assert [group.value for group in table.groups] == [f"{lr:.6g}" for lr in RATES]
    for group in table.groups:
        inside = [row.values[0] for row in table.rows if row.group == group.value]
        assert group.runs == len(inside) == 6
        assert (group.lows, group.highs) == ((min(inside),), (max(inside),))
        np.testing.assert_allclose(group.means[0], np.mean(inside))


def test_what_can_be_chosen_says_where_runs_differ(runs):
    known = {each.key: each for each in Columns(runs).known()}
    assert known["lr"].differs
    assert not known["optimizer.momentum"].differs
    assert known["val_loss"].source == "number"
    assert {column.key for column in Columns(runs).settings()} == {"lr", "width", "seed", "act", "optimizer.lr"}
