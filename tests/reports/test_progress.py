"""What the progress summary finds out."""

import pytest

from trainer_outputs import answer, sample, write_state


def rows(losses, norms=None, first=1, every=1):
    made = [{"loss": loss, "step": first + every * index} for index, loss in enumerate(losses)]
    for row, norm in zip(made, norms or [], strict=False):
        row["grad_norm"] = norm
    return made


def test_exactly_ten_rows_have_a_trend(capsys):
    found = answer(capsys, sample("exactly_10_rows.json"))
    assert found["trend"]["direction"] == "falling"
    assert found["trend"]["low"] < found["trend"]["slope_per_step"] < found["trend"]["high"] < 0
    assert found["broken"] is None


@pytest.mark.parametrize(
    ("name", "step", "previous", "is_hidden"),
    [
        ("nan__filter_off", 8, 7, False),
        ("nan__filter_on", 8, 7, True),
        ("nan__filter_on_logging_steps5", 10, 5, True),
        ("inf_once__filter_off_no_clip", 8, 7, False),
    ],
)
def test_a_broken_run_is_called_broken_whatever_its_loss_says(capsys, name, step, previous, is_hidden):
    found = answer(capsys, sample(f"{name}.json"))
    broken = found["broken"]
    assert (broken["step"], broken["previous_step"]) == (step, previous)
    assert (broken["is_lasting"], broken["is_hidden"]) == (True, is_hidden)
    assert found["trend"] is None
    # A filtered loss of 0 is no lowest loss.
    assert found["loss"]["lowest"] > 3.7


def test_a_diverging_run_is_not_broken_and_not_falling(capsys):
    found = answer(capsys, sample("diverge__lr3.json"))
    assert found["broken"] is None
    assert found["loss"]["highest"] > 400


def test_steps_that_a_loss_scaler_skipped_do_not_break_a_run(capsys, tmp_path):
    losses = [3 - 0.1 * step for step in range(20)]
    norms = [1.0] * 20
    norms[4] = float("inf")
    found = answer(capsys, write_state(tmp_path / "trainer_state.json", rows(losses, norms)))
    assert (found["broken"]["step"], found["broken"]["is_lasting"], found["broken"]["num_rows"]) == (5, False, 1)
    assert found["trend"]["direction"] == "falling"


def test_a_loss_of_exactly_zero_without_a_norm_is_suspicious_but_a_small_one_is_not(capsys, tmp_path):
    path = write_state(tmp_path / "trainer_state.json", rows([3.0, 2.9, 0.0, 0.0]))
    assert answer(capsys, path)["zero_loss_since"] == 3
    path = write_state(tmp_path / "trainer_state.json", rows([0.0, 0.0, 0.0]))
    assert answer(capsys, path)["zero_loss_since"] is None
    assert answer(capsys, sample("trl_grpo__checkpoint-4.json"))["zero_loss_since"] is None


def test_a_loss_that_was_never_finite_has_no_lowest_value(capsys, tmp_path):
    found = answer(capsys, write_state(tmp_path / "trainer_state.json", rows([float("nan")] * 6)))
    assert (found["loss"]["last"], found["loss"]["lowest"], found["loss"]["mean"]) == ("nan", None, None)
    assert found["broken"]["previous_step"] is None


def test_what_is_better_depends_on_the_number(capsys):
    found = {each["name"]: each for each in answer(capsys, sample("eval_best__root_after_evaluate.json"))["evaluation"]}
    assert found["eval_loss"]["best"] == found["eval_loss"]["last"]
    assert found["eval_accuracy"]["best"] >= found["eval_accuracy"]["last"]
    # How long an evaluation took is no finding of it.
    assert set(found) == {"eval_loss", "eval_accuracy"}


def test_percentages_are_of_steps_and_epochs_apart(capsys):
    found = answer(capsys, sample("normal__checkpoint-24.json"))
    assert (found["step_percent"], found["epoch_percent"]) == (80, pytest.approx(80))
    found = answer(capsys, sample("nan__filter_off.json"))
    assert (found["step_percent"], found["epoch_percent"]) == (100, pytest.approx(70))
