"""What the home of a run says about its speed, in a real browser."""

import pytest
from playwright.sync_api import expect

import slowed_trainings

pytestmark = pytest.mark.slow


def test_home_says_what_limits_the_speed_and_what_to_try(visit_below, tmp_path):
    slowed_trainings.train(tmp_path / "slow", "dataset")
    speed = visit_below("?run=slow").get_by_label("Speed")
    expect(speed.get_by_role("heading")).to_contain_text("Waiting for input")
    expect(speed).to_contain_text("num_workers")
    expect(speed).to_contain_text("samples/s")
    expect(speed.get_by_role("listitem").first).to_contain_text("Waiting for input")
