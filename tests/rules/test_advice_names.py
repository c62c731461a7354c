"""The advice of an incident has the names of this run, not placeholders."""

import re

import pytest
from courses import Course, summary

from vario.rules import RULES
from vario.rules.api.incidents import collect

KNOWN = {found.name: found.part for found in RULES}


def advice_of(alerts):
    _, incidents = collect(alerts, KNOWN)
    return [incident.advice for incident in incidents]


def test_the_module_of_the_alert_is_named():
    course = Course(["attn_logit"])

    def rows(top):
        return "attention", {"layers.3.attn:max_logit": summary(1.0, high=top)}

    for _ in range(30):
        course.step(rows(8.0 + course.size()))
    [advice] = advice_of(course.step(rows(150.0)))
    assert "`vario show 'layers.3.attn*' --quantity weight`" in advice


def test_the_slow_rank_is_named():
    course = Course(["straggler"], ranks=4)
    said = []
    for step in range(80):
        times = [0.1 * course.size(0.02) * (1.5 if rank == 2 and step >= 40 else 1.0) for rank in range(4)]
        said += course.step_of_ranks([[]] * 4, [{"forward_seconds": value} for value in times])
    assert "--rank 2`" in advice_of(said)[0]


@pytest.mark.parametrize("rule", [found.name for found in RULES])
def test_placeholders_of_rules_are_those_that_are_filled_in(rule):
    capitals = set(re.findall(r"\b[A-Z]{4,}\b", " ".join(re.findall(r"`([^`]*)`", KNOWN[rule].next))))
    assert capitals <= {"MODULE", "LAYER", "NAME", "RANK", "HEALTHY", "THIS"}  # the last two are runs
