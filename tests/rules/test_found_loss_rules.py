"""Rules about the loss, where nobody logs one and vario found what backward was called on."""

import numpy as np
import pytest
from courses import Course

from vario.rules import RULES
from vario.rules.api.alerts import Alert
from vario.rules.api.incidents import diagnose

KNOWN = {found.name: found.part for found in RULES}


def shifted(course, name, level):
    """A hundred steps at one level, then thirty at half of it more; what was said."""
    for _ in range(100):
        assert not course.step(scalars={name: level + 0.02 * course.noise.normal()})
    return [
        alert for _ in range(30) for alert in course.step(scalars={name: 1.5 * level + 0.02 * course.noise.normal()})
    ]


@pytest.mark.parametrize("name", ["loss", "loss_local", "loss_backward"])
def test_a_level_that_changes_is_told_of_whichever_loss_there_is(name):
    said = shifted(Course(["loss_shift"]), name, 2.0)
    assert {(alert.rule, alert.target, alert.severity) for alert in said} == {("loss_shift", name, "note")}


def test_an_objective_that_is_not_positive_has_no_level():
    course = Course(["loss_shift", "loss_swings", "rank_outlier"])
    assert shifted(course, "loss_backward", -2.0) == []


def test_losses_of_parts_that_are_trained_against_each_other_are_left_alone():
    course = Course(["loss_shift", "loss_swings", "loss_spike", "plateau"])
    assert shifted(course, "loss_backward/generator", 2.0) == []


def test_a_logged_loss_and_a_found_one_are_not_taken_for_one_series():
    course = Course(["loss_shift", "loss_swings"])
    for step in range(200):
        scalars = {"loss_backward": 2.0 + 0.02 * course.noise.normal()}
        if step % 10 == 9:
            scalars["loss"] = 20.0 + 0.02 * course.noise.normal()  # logged in other units
        assert not course.step(scalars=scalars)


def test_a_found_loss_that_is_no_number_is_a_page():
    [alert] = Course(["non_finite"]).step(scalars={"loss_backward": np.nan})
    assert (alert.target, alert.severity) == ("loss_backward", "page")


@pytest.mark.parametrize(("name", "severity"), [("loss", "warn"), ("loss_local", "warn"), ("loss_backward", "note")])
def test_what_backward_was_called_on_makes_no_note_more_urgent(name, severity):
    def note(rule, quantity, target):
        return Alert(
            rule=rule,
            kind="relative",
            severity="note",
            step=50,
            rank=0,
            quantity=quantity,
            target=target,
            value=1.0,
            text="off",
        )

    alerts = [note("grad_spike", "gradient", "layers.1.weight"), note("loss_shift", "scalar", name)]
    assert diagnose(alerts, KNOWN).severity == severity
