import math
import re

import pytest

from vario.core.text import duration, number, reason, size, suggestion, unknown, when


def test_a_near_name_is_suggested():
    assert suggestion("nrom", ["norm", "mean"]) == "Did you mean 'norm'?"


def test_without_a_near_name_the_known_ones_are_listed():
    assert suggestion("zzz", ["norm", "mean"]) == "Known: mean, norm."


def test_a_long_list_is_cut():
    assert suggestion("#", [f"name{n:02d}" for n in range(20)]).endswith("name11 and others.")


def test_nothing_to_choose_from_is_said():
    assert suggestion("x", []) == "There are none."


def test_an_unknown_name_carries_its_key():
    assert unknown("statistics", "nrom", ["norm"]) == "statistics: unknown 'nrom'. Did you mean 'norm'?"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (3.0, "3"),
        (0.123456, "0.1235"),
        (1234567.0, "1.235e+06"),
        (1e-9, "1e-09"),
    ],
)
def test_numbers_are_short_and_never_hide_what_is_not_finite(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (850e-6, "850 us"),
        (0.0123, "12.3 ms"),
        (4.2, "4.2 s"),
        (185, "3 min 05 s"),
        (59.999, "60 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_durations_use_the_unit_that_fits(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"), [(512, "512 B"), (1536, "1.5 KiB"), (24 * 2**20, "24.0 MiB"), (2**41, "2.0 TiB")]
)
def test_sizes_are_binary(num_bytes, text):
    assert size(num_bytes) == text


def test_an_exception_is_one_short_line():
    assert reason(ValueError("first line\n  and the next.")) == "ValueError: first line and the next"
    assert reason(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(reason(ValueError("long " * 1000))) < 330


@pytest.mark.parametrize("seconds", [1e30, -1e30, float("nan"), float("inf")])
def test_a_time_that_no_calendar_has_is_a_question_mark(seconds):
    assert when(seconds) == "?"


def test_a_time_is_told_to_the_minute():
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", when(1.7e9))
