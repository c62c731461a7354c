"""What changed lately is named, once, and before what did not."""

import re

import numpy as np
import pytest

import made_runs
import vario
from little_trainings import break_a_weight, train
from vario import ConfigError
from vario.core.records import COUNT, MAX, MIN, NANS, SUM, SUM_SQUARES, Frame, Scalars, StepRecord
from vario.reports.changes_text import how
from vario.runs.findings.changes import rank_changes

STEPS = 120
NAMES = tuple(f"layers.{number}.weight" for number in range(8))


def made(path, change, quantity="gradient", names=NAMES, steps=STEPS, every=1):
    """A run of noisy sizes; `change(step, sizes)` may change them."""
    rng = np.random.default_rng(0)

    def records():
        for step in range(0, steps, every):
            sizes = np.exp(rng.normal(0, 0.05, len(names)))
            sizes = change(step, sizes)
            rows = np.zeros((len(names), 8))
            rows[:, COUNT] = 100
            rows[:, SUM] = rng.normal(0, 0.5, len(names)) * sizes
            rows[:, SUM_SQUARES] = 100 * sizes**2
            rows[:, MIN], rows[:, MAX] = -3 * sizes, 3 * sizes
            rows[:, NANS] = np.isnan(sizes)
            frame = Frame(quantity, step, 0, names, np.arange(len(names), dtype=np.int32), rows)
            yield StepRecord(step, [frame], Scalars(step, float(step), {"loss": 1.0 + rng.normal(0, 0.01)}))

    made_runs.write_run(path, records())
    return vario.open_run(path)


def level(step, sizes):
    if step >= 110:
        sizes[2] *= 1.5
    return sizes


def spike(step, sizes):
    if step == 112:
        sizes[3] *= 8
    return sizes


def trend(step, sizes):
    sizes[4] *= np.exp(0.1 * max(0, step - 108))
    return sizes


def noisy(step, sizes):
    if step >= 100:
        sizes[5] *= np.exp(0.6 * (-1) ** step)
    return sizes


def constant(step, sizes):
    if step >= 105:
        sizes[6] = 1.0
    return sizes


def broken(step, sizes):
    if step >= 115:
        sizes[1] = np.nan
    return sizes


def drop(step, sizes):
    if step == 112:
        sizes[3] /= 20
    return sizes


@pytest.mark.parametrize(
    ("change", "kind", "row", "step"),
    [
        (level, "level", 2, 110),
        (spike, "spike", 3, 112),
        (drop, "drop", 3, 112),
        (trend, "trend", 4, None),
        (noisy, "spread", 5, None),
        (constant, "constant", 6, 105),
        (broken, "non-finite", 1, 115),
    ],
)
def test_each_kind_of_change_is_first_and_named(tmp_path, change, kind, row, step):
    ranking = rank_changes(made(tmp_path / "run", change))
    found = ranking.changes[0]
    assert (found.target, found.kind) == (NAMES[row], kind)
    assert step is None or found.step == step
    assert ranking.num_series == 8 * 4 + 1


def test_noise_is_no_change(tmp_path):
    ranking = rank_changes(made(tmp_path / "run", lambda step, sizes: sizes))
    assert not ranking.changes


def test_a_trend_that_goes_on_as_before_is_no_change(tmp_path):
    assert not rank_changes(made(tmp_path / "run", lambda step, sizes: sizes * np.exp(0.01 * step))).changes


def test_a_jump_is_seen_on_top_of_a_trend(tmp_path):
    def climb(step, sizes):
        return level(step, sizes * np.exp(0.02 * step))

    (found,) = rank_changes(made(tmp_path / "run", climb)).changes
    assert (found.target, found.step) == (NAMES[2], 110)


def flattens(step, sizes):
    sizes[2] *= np.exp(0.05 * min(step, 105))
    return sizes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (level, r"^3\.\d+ → 4\.\d+ \(x 1\.\d+\)$"),
        (trend, r"^rises, \S+ → \S+ \(x "),
        (flattens, r"^below its trend: \d+ expected, \d+ now \(x 0\.\d+\)$"),
    ],
)
def test_words_say_where_a_curve_went_and_not_only_what_was_expected(tmp_path, change, words):
    found = rank_changes(made(tmp_path / "run", change)).changes[0]
    assert re.search(words, how(found)), how(found)


def test_what_most_tensors_show_is_one_line(tmp_path):
    def scale(step, sizes):
        return sizes * (3.0 if step >= 110 else 1.0)

    (found,) = rank_changes(made(tmp_path / "run", scale)).changes
    assert found.num_alike == 8
    assert found.after / found.before == pytest.approx(3, rel=0.2)


def test_series_with_the_same_numbers_are_one_thing(tmp_path):
    rng = np.random.default_rng(1)
    names = ("a:output", "b:input", "b:output", "c:input", "c:output")

    def records():
        for step in range(STEPS):
            one, two, three = np.exp(rng.normal(0, 0.05, 3)) * ((4.0 if step > 110 else 1.0), 1.0, 1.0)
            rows = np.zeros((5, 8))
            for row, size in enumerate((one, one, two, two, three)):
                rows[row, [COUNT, SUM_SQUARES, MIN, MAX]] = 10, 10 * size**2, -size, size
            frame = Frame("activation", step, 0, names, np.arange(5, dtype=np.int32), rows)
            yield StepRecord(step, [frame], Scalars(step, 0.0, {"loss": 1.0}))

    made_runs.write_run(tmp_path / "run", records())
    (found,) = rank_changes(vario.open_run(tmp_path / "run")).changes
    assert found.target == "a:output"
    assert found.same == ("activation of b:input",)


def test_lately_can_be_said_in_steps(tmp_path):
    run = made(tmp_path / "run", lambda step, sizes: sizes * np.where(np.arange(8) == 2, 3.0 if step >= 60 else 1, 1.0))
    assert rank_changes(run, last=60).changes[0].step == 60
    with pytest.raises(ConfigError, match="last: expected a number of steps"):
        rank_changes(run, last=0)
    with pytest.raises(ConfigError, match="Did you mean 'gradient'"):
        rank_changes(run, quantity="gradeint")


def test_a_real_training_that_breaks_shows_where(tmp_path):
    run = vario.open_run(train(tmp_path / "run", steps=70, fault=break_a_weight, fault_step=64))
    first = rank_changes(run, top=1).changes[0]
    assert first.target.startswith("blocks.1")
    assert first.step == 64


def test_an_empty_run_has_nothing_to_compare(tmp_path):
    made_runs.write_run(tmp_path / "run", [])
    assert rank_changes(vario.open_run(tmp_path / "run")).changes == ()
