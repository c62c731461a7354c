"""A loss that nobody logged, as the page shows it."""

import pytest
from playwright.sync_api import expect

import made_runs

pytestmark = pytest.mark.slow


def test_the_list_and_the_run_mark_a_loss_that_was_found(visit_below, tmp_path):
    made_runs.write_run(tmp_path / "found", [made_runs.record(step, loss_backward=9.0 - step) for step in range(8)])
    made_runs.write_run(tmp_path / "logged", [made_runs.record(step, loss=3.0, loss_backward=1.0) for step in range(8)])
    page = visit_below()
    marks = "found by vario"
    expect(page.get_by_role("row").filter(has_text="found").get_by_title(marks)).to_have_text("*")
    expect(page.get_by_role("row").filter(has_text="logged").get_by_title(marks)).to_have_count(0)
    page = visit_below("?run=found")
    expect(page.get_by_label("Vital signs").get_by_title(marks)).to_have_text("found")
    page = visit_below("?run=logged")
    expect(page.get_by_label("Vital signs")).to_contain_text("loss")
    expect(page.get_by_label("Vital signs").get_by_title(marks)).to_have_count(0)
