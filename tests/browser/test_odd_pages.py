"""Pages of runs that are unusual, that go away or are replaced: what they say, and that nothing spins for ever."""

import json
import shutil

import numpy as np
import pytest
from browsing import Visitor
from playwright.sync_api import expect
from web_client import serving

import made_runs

pytestmark = pytest.mark.slow

BANNER = ".banner"
SPINNER = ".loading"


def write(path, steps=8, loss=lambda step: 1 / (1 + step), close="finished", **scalars):
    records = [made_runs.record(step, loss=loss(step), **scalars) for step in range(steps)]
    return made_runs.write_run(path, records, close=close)


def are_refusals(complaints):
    """Whether a browser complained of answers 400 and 404 alone, which it does of each."""
    return all("status of 40" in complaint for complaint in complaints)


def test_a_loss_at_both_ends_of_all_numbers_is_drawn(visit_below, tmp_path):
    write(tmp_path / "run", loss=lambda step: 1.7e308 * (-1) ** step)
    page = visit_below("?run=run")
    vital = page.get_by_label("Vital signs").get_by_role("link", name="loss")
    expect(vital).to_contain_text("1.7e308")
    assert "NaN" not in vital.locator("path").first.get_attribute("d")


def test_steps_beyond_what_a_number_tells_apart_are_shown(visit_below, tmp_path):
    made_runs.write_run(tmp_path / "run", [made_runs.record(step) for step in range(2**62, 2**62 + 4)])
    page = visit_below("?run=run")
    expect(page.locator(".heat-note")).to_contain_text("4 columns")
    expect(visit_below("?run=run&screen=series").get_by_role("figure")).to_be_visible()


def test_a_run_without_anything_has_every_screen(visit_below, tmp_path):
    write(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "rank0")
    (tmp_path / "run" / "rank0").mkdir()
    for screen in ("home", "series", "changes", "alerts", "ranks", "compare", "model", "settings"):
        page = visit_below(f"?run=run&screen={screen}")
        expect(page.locator("main")).to_contain_text(
            {
                "home": "No tensors recorded",
                "series": "No series selected",
                "changes": "Nothing changed",
                "alerts": "No alerts",
                "ranks": "Not recorded on any rank",
                "compare": "Choose a run to compare with",
                "model": "No model recorded",
                "settings": "python train.py",
            }[screen]
        )
        expect(page.locator(SPINNER)).to_have_count(0)


@pytest.mark.parametrize("series", ["gradient||norm", "no_such||norm"])
def test_ranks_without_a_target_say_so_and_lead_back(visit_below, tmp_path, series):
    write(tmp_path / "run", step_seconds=1.0)
    made_runs.write_run(tmp_path / "run", [], resume=True, first_step=0)
    page = visit_below(f"?run=run&screen=ranks&series={series}")
    expect(page.locator("main")).to_contain_text("Not recorded on any rank")
    page.get_by_role("link", name="Show step times").click()
    expect(page.get_by_role("heading", name="1 rank")).to_be_visible()


def test_the_loss_of_two_runs_is_compared_whatever_it_is_called(visit_below, tmp_path):
    for name in ("one", "two"):
        records = [made_runs.record(step, **{"train/loss": 1 / (1 + step)}) for step in range(6)]
        made_runs.write_run(tmp_path / name, records)
    page = visit_below("?run=one&screen=compare&runs=two")
    expect(page.get_by_role("figure", name="train/loss")).to_be_visible()


def test_numbers_that_are_not_finite_are_no_nan_by_name(visit_below, tmp_path):
    for name, value in (("one", 1.0), ("two", np.inf)):
        write(tmp_path / name, loss=lambda step, value=value: value if step > 3 else 1.0)
    page = visit_below("?run=one&screen=compare&runs=two")
    expect(page.get_by_label("Series with the largest differences")).to_contain_text("NaN or Inf")


def test_very_many_alerts_are_counted_and_the_first_are_shown(visit_below, tmp_path):
    write(tmp_path / "run")
    alert = {"rule": "odd", "kind": "exact", "severity": "warn", "rank": 0, "quantity": "gradient", "value": 1.0}
    lines = [json.dumps(alert | {"step": at // 500, "target": f"t{at}", "text": f"alert {at}"}) for at in range(2500)]
    (tmp_path / "run" / "rank0" / "alerts.jsonl").write_text("\n".join(lines))
    page = visit_below("?run=run&screen=alerts")
    card = page.locator(".card").filter(has_text="All alerts: 2,500")
    card.get_by_role("button", name="Show").click()
    expect(card).to_contain_text("The first 2,000:")


def test_a_long_name_makes_no_page_wider_than_its_window(visit_below, tmp_path):
    for name, targets in (("one", ("long" * 120, "x.weight")), ("two", ("x.weight",))):
        records = [made_runs.record(step, made_runs.frame(step, targets=targets)) for step in range(4)]
        made_runs.write_run(tmp_path / name, records)
    page = visit_below("?run=one&screen=compare&runs=two")
    expect(page.locator(".foot-note")).to_contain_text("longlong")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_number_of_an_update_leads_to_its_series(visit):
    page = visit("?run=healthy&screen=model")
    row = page.get_by_role("row").filter(has=page.get_by_text("weight", exact=True)).first
    row.get_by_role("link").nth(2).click()
    expect(page.get_by_role("figure", name="update")).to_contain_text(":ratio")


def test_a_run_that_is_deleted_while_its_page_is_open_is_said_to_be_gone(visit_below, tmp_path):
    write(tmp_path / "run", close=None)
    page = visit_below("?run=run")
    expect(page.locator(".live")).to_have_text("live")
    page.evaluate(
        "new MutationObserver(() => { window.hadBanner ||= !!document.querySelector('.banner') })"
        ".observe(document.body, { childList: true, subtree: true })"
    )
    shutil.rmtree(tmp_path / "run")
    expect(page.locator("main")).to_contain_text("no run 'run'")
    assert not page.evaluate("window.hadBanner"), "the server did answer"
    assert are_refusals(visit_below.complaints)
    visit_below.complaints.clear()


def test_a_run_that_is_replaced_while_its_page_is_open_is_shown_from_its_beginning(visit_below, tmp_path):
    write(tmp_path / "run", steps=30, close=None)
    page = visit_below("?run=run")
    note = page.locator(".heat-note")
    expect(note).to_contain_text("30 columns")
    # A page that comes while it is written would not be told of its last step, which may not be complete.
    write(tmp_path / ".new", steps=5, close=None)
    shutil.rmtree(tmp_path / "run")
    (tmp_path / ".new").rename(tmp_path / "run")
    expect(note).to_contain_text("5 columns")
    assert are_refusals(visit_below.complaints)
    visit_below.complaints.clear()


def test_a_stream_that_is_refused_is_not_taken_for_a_server_that_is_gone(visit_below, tmp_path):
    write(tmp_path / "run", close=None)
    page = visit_below("?run=run&screen=series&series=nonsense")
    expect(page.locator("main")).to_contain_text("expected QUANTITY|TARGET|STATISTIC")
    for _ in range(20):
        page.wait_for_timeout(100)
        assert not page.locator(BANNER).count()
    assert are_refusals(visit_below.complaints)
    visit_below.complaints.clear()


def test_the_list_drops_a_run_that_went(visit_below, tmp_path):
    for name in ("stays", "goes"):
        write(tmp_path / name)
    page = visit_below()
    row = page.get_by_role("row").filter(has_text="goes")
    expect(row).to_be_visible()
    expect(page.locator(".live")).to_have_text("live")
    shutil.rmtree(tmp_path / "goes")
    expect(row).to_have_count(0)
    expect(page.get_by_role("row").filter(has_text="stays")).to_be_visible()


def test_an_open_page_tells_by_itself_that_the_server_is_gone(browser, tmp_path):
    write(tmp_path / "run", close=None)
    with serving(tmp_path) as server:
        visitor = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visitor("?run=run")
        expect(page.locator(".live")).to_have_text("live")
    expect(page.locator(BANNER)).to_contain_text("The server does not respond")
    visitor.complaints.clear()
    page.close()
    visitor.leave()
