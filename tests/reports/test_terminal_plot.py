import math

import numpy as np
import pytest

from vario.reports.terminal_plot import line_plot, spans_decades, sparkline


def test_a_sparkline_goes_from_lowest_to_highest_block():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"


def test_a_long_curve_is_squeezed_into_the_width():
    assert sparkline(np.linspace(0, 1, 1000), width=8) == "▁▂▃▄▅▆▇█"


def test_what_is_not_finite_is_marked_even_when_one_point_in_a_thousand():
    values = np.ones(1000)
    values[500] = math.nan
    values[900] = math.inf
    assert sparkline(values, width=10) == "▅▅▅▅▅N▅▅▅I"


def test_a_constant_curve_stands_in_the_middle_whatever_its_size():
    assert sparkline([0, 0]) == sparkline([2.0**100] * 2) == sparkline([-5, -5]) == "▅▅"


def test_nothing_gives_nothing():
    assert sparkline([]) == ""
    assert line_plot([], []) == "(no values)"


def test_a_higher_sparkline_has_finer_steps():
    assert sparkline([0, 1, 2, math.nan], height=2).splitlines() == [" ▁█", "▁██N"]
    assert sparkline(np.arange(16), width=16, height=2).splitlines() == ["        ▁▂▃▄▅▆▇█", "▁▂▃▄▅▆▇█████████"]


def test_a_logarithmic_sparkline_shows_every_decade():
    assert sparkline([1, 10, 100, 1e7], log=True) == "▁▂▃█"


def test_a_value_without_a_logarithm_leaves_a_gap():
    assert sparkline([0, 1, 10], log=True) == " ▁█"


def test_a_plot_keeps_its_size():
    lines = line_plot(range(50), np.sin(np.arange(50) / 5), width=60, height=7).splitlines()
    assert len(lines) == 7 + 2
    assert max(map(len, lines)) <= 60


def test_a_plot_shows_the_extremes_and_the_steps():
    lines = line_plot([100, 200, 300], [0.5, -1.5, 2.5], width=40, height=5).splitlines()
    assert lines[0].split()[0] == "2.5"
    assert lines[4].split()[0] == "-1.5"
    assert lines[-1].split() == ["step", "100", "300"]


def test_a_rising_line_rises():
    rows = line_plot([0, 1], [0.0, 1.0], width=22, height=5).splitlines()[:5]
    ends = [len(row) for row in rows]
    assert ends == sorted(ends, reverse=True)


def test_a_plot_marks_what_is_not_finite_where_it_happened():
    text = line_plot([0, 1, 2, 3], [1.0, math.inf, math.nan, 2.0], width=42, height=4)
    marks = next(line for line in text.splitlines() if "not finite" in line)
    assert marks.split("│")[1].split() == ["I", "N"]


def test_a_plot_of_nothing_finite_still_tells_where():
    text = line_plot([5, 6], [math.nan, math.nan], width=42, height=3)
    assert text.count("N") == 2


def test_a_single_point_is_drawn():
    assert any(0x2800 < ord(character) < 0x2900 for character in line_plot([7], [3.0]))


@pytest.mark.parametrize(
    ("values", "wide"),
    [([1, 2000], True), ([1, 999], False), ([0, 5000], False), ([-1, 5000], False), ([math.nan], False), ([], False)],
)
def test_a_wide_positive_range_asks_for_a_logarithmic_axis(values, wide):
    assert spans_decades(values) is wide
