"""Thresholds follow from the tail of the largest scores of healthy loops."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

# At the end: `zoo` is the only name this folder should add.
sys.path.append(str(Path(__file__).parents[2] / "bench"))

from vario.rules import RULES
from zoo import calibrate, tails
from zoo.calibrate import UNITS, Block, calibrated, options_at

GRID = tuple(1.15 ** (power - 10) for power in range(30))
CALIBRATION = json.loads((Path(calibrate.__file__).parent / "calibration.json").read_text(encoding="utf8"))


def on_grid(values):
    """The largest place of the grid that each value reaches, as trying one threshold after the other finds it."""
    return [max((place for place in GRID if place <= value), default=0.0) for value in values]


@pytest.mark.parametrize(("shape", "size"), [(0.0, 0.35), (0.3, 0.25)])
def test_a_threshold_is_passed_at_the_rate_it_was_chosen_for(shape, size):
    noise = np.random.default_rng(3)
    chances = noise.random(4000)
    excess = -np.log(chances) if shape == 0 else (chances**-shape - 1) / shape
    values = 0.3 + size * excess
    tail = tails.fit(on_grid(values[:400]), GRID, steps=400 * 1000)
    threshold = tail.threshold_for(0.02)
    assert tail.rate_at(threshold) == pytest.approx(0.02)
    # Fitted on 400 blocks, checked on 3,600 others.
    assert 0.005 < (values[400:] > threshold).mean() < 0.05


def test_no_score_gives_no_tail_and_a_rare_enough_one_no_higher_threshold():
    assert tails.fit([0.0] * 50, GRID, 50_000) is None
    tail = tails.fit([0.0] * 50 + [GRID[4]], GRID, 51_000)
    assert tail.threshold_for(0.5) == GRID[4]


def test_the_conformal_score_needs_enough_blocks():
    scores = [float(number) for number in range(100)]
    assert tails.conformal(scores, [1000] * 100, 0.001) is None
    assert tails.conformal(scores, [1000] * 100, 0.05) == 95


@pytest.mark.parametrize(("count", "expected"), [(0, 2.996), (1, 4.744), (5, 10.513)])
def test_what_a_count_rules_out_is_poissons_upper_limit(count, expected):
    assert tails.upper_rate(count, 1000) == pytest.approx(expected, abs=1e-3)


def test_series_that_go_their_own_ways_add_up_and_those_that_move_together_do_not():
    noise = np.random.default_rng(5)
    series = [4, 40, 400] * 60
    apart = [int(noise.random() < 0.001 * number) for number in series]
    together = [int(noise.random() < 0.2) for _ in series]
    steps = [1000] * len(series)
    assert tails.growth(apart, steps, series)[0] > 0.6
    assert tails.growth(together, steps, series)[0] < 0.3


def test_a_rule_that_scores_often_gets_a_higher_threshold_and_one_that_hardly_does_keeps_its_own():
    noise = np.random.default_rng(1)
    seen = {"activation": 10, "update": 10, "gradient": 10}
    blocks = [
        Block("loop", "recipe", 1000, seen, {"grad_spike": score} if score else {})
        for score in on_grid(0.3 + 0.6 * noise.exponential(size=300))
    ]
    found = calibrated(blocks, 0.02)
    assert found["grad_spike"]["options"]["threshold"] > RULES.get("grad_spike").options["threshold"]
    assert "options" not in found["update_jump"]
    assert found["update_jump"]["at_most"] == pytest.approx(3 / 300, rel=0.01)


def test_factors_are_scaled_as_powers():
    assert options_at("drift", 2.0)["gradient"] == UNITS["drift"]["gradient"] ** 2
    assert options_at("grad_spike", 2.0)["threshold"] == 2 * UNITS["grad_spike"]["threshold"]


@pytest.mark.parametrize("rule", list(UNITS))
def test_defaults_are_those_of_the_calibration(rule):
    options = {name: RULES.get(rule).options[name] for name in calibrate.defaults_of(rule)}
    assert options == CALIBRATION["rules"][rule]["defaults"]
