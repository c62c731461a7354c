"""Every other screen of a run in a real browser, on runs that were really trained."""

import re
from pathlib import Path

import pytest
from browsing import Visitor, box_of
from playwright.sync_api import expect
from web_client import serving

import vario
from starting import run_ranks
from thorough import thorough
from vario.runs.findings.changes import rank_changes

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "ddp.py"


def test_the_list_shows_how_each_run_fares(visit):
    page = visit()
    broken = page.get_by_role("row").filter(has_text="broken")
    expect(broken).to_contain_text("finished")
    expect(broken).to_contain_text("step 59")
    expect(broken).to_contain_text("NaN")
    expect(broken.get_by_role("link", name=re.compile("of severity page"))).to_be_visible()
    healthy = page.get_by_role("row").filter(has_text="healthy")
    expect(healthy.get_by_role("img")).to_have_attribute("aria-label", "Loss of healthy")
    page.get_by_role("button", name="With alerts").click()
    expect(broken).to_be_visible()
    expect(healthy).to_have_count(0)
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_label("Search runs").fill("healthy")
    expect(page.get_by_role("row").filter(has_text="step")).to_have_count(1)
    page.get_by_role("link", name="healthy").click()
    expect(page).to_have_url(re.compile(r"\?run=healthy$"))


def test_two_chosen_runs_are_compared_and_the_first_divergence_is_marked(visit, folder):
    page = visit()
    page.get_by_label("Select healthy for comparison").check()
    page.get_by_label("Select changed for comparison").check()
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page).to_have_url(re.compile("screen=compare.*runs=changed"))
    divergence = vario.diff(vario.open_run(folder / "healthy"), vario.open_run(folder / "changed")).divergence
    assert divergence.step == 30
    expect(page.get_by_label("First divergence")).to_contain_text("They diverge at step 30")
    expect(page.get_by_role("figure").first).to_contain_text("healthy")
    expect(page.get_by_role("figure").first).to_contain_text("changed")
    difference = page.get_by_role("application", name=re.compile("Difference of"))
    expect(difference).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("Step 30: the runs diverge here"))).to_be_visible()
    largest = page.get_by_role("region", name="Series with the largest differences")
    expect(largest.get_by_role("row")).not_to_have_count(1)


def test_curves_are_added_by_search_scaled_and_smoothed(visit):
    page = visit("?run=healthy&screen=series&series=gradient|head.weight|norm")
    figure = page.get_by_role("figure")
    expect(figure).to_contain_text("head.weight")
    finder = page.get_by_label("Find a series to add")
    finder.fill("blocks.2")
    options = page.get_by_role("listbox", name="Series").get_by_role("option")
    expect(options.first).to_contain_text("blocks.2")
    finder.press("ArrowDown")
    # The input keeps the focus: this is how a screen reader learns which option was reached.
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    expect(finder).to_have_attribute("aria-activedescendant", options.nth(1).get_attribute("id"))
    page.get_by_role("option", name=re.compile("blocks.2.0.weight")).click()
    expect(figure).to_contain_text("blocks.2.0.weight")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Log", exact=True).click()
    page.get_by_label("Smoothing").fill("0.6")
    page.get_by_role("button", name="Time").click()
    expect(page).to_have_url(re.compile("log=1&smooth=0.6&x=time"))
    page.get_by_role("button", name="Remove head.weight").click()
    expect(figure).not_to_contain_text("head.weight")


def test_a_shared_address_shows_the_same_view(visit):
    query = (
        "?run=healthy&screen=series&series=gradient|head.weight|norm&series=scalar|loss|value&log=1&first=10&last=30"
    )
    page = visit(query)
    expect(page.get_by_role("figure")).to_have_count(2)
    expect(page.locator(".chart-at").first).to_have_text("step 30")
    expect(page.get_by_role("button", name="Log", exact=True)).to_have_attribute("aria-pressed", "true")
    assert page.url.endswith(query)


def test_csv_holds_every_point_and_png_is_a_picture(visit, server):
    page = visit("?run=healthy&screen=series&series=scalar|loss|value")
    expect(page.get_by_role("figure")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = Path(download.value.path()).read_text(encoding="utf8").splitlines()
    assert len(lines) == 1 + 60
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").click()
    assert download.value.suggested_filename == "loss.png"
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")


def test_dragging_in_one_chart_zooms_all_of_them(visit):
    page = visit("?run=healthy&screen=series&series=scalar|loss|value&series=gradient|head.weight|norm")
    over = page.locator(".u-over")
    expect(over).to_have_count(2)
    box = box_of(over.first)
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"first=1[45]&last=(29|30)"))
    expect(page.locator(".chart-at").nth(1)).to_have_text(re.compile("step (29|30|1[45])"))
    page.get_by_role("button", name="Show all").click()
    expect(page).not_to_have_url(re.compile("first="))


def test_a_nan_is_marked_under_the_curve_and_told_in_its_table(visit):
    page = visit("?run=deeper/broken&screen=series&series=scalar|loss|value")
    expect(page.locator(".chart-legend")).to_contain_text("NaN")
    page.get_by_role("button", name="Table").click()
    expect(page.get_by_role("row").filter(has_text="NaN or Inf")).to_have_count(15)


def test_what_changed_ranks_series_and_leads_to_them(visit, folder):
    page = visit("?run=deeper/broken&screen=changes")
    changes = page.get_by_role("listitem")
    expect(changes.first).to_contain_text("non-finite")
    found = rank_changes(vario.open_run(folder / "deeper" / "broken"), top=10).changes
    expect(changes).to_have_count(len(found))
    expect(changes.first).to_contain_text(found[0].target)
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("screen=series"))


def test_alerts_are_explained_and_lead_to_their_place(visit):
    page = visit("?run=deeper/broken&screen=alerts")
    expect(page.locator(".diagnosis")).to_contain_text("At step 45")
    expect(page.get_by_label("Root cause and consequences").get_by_role("listitem").first).to_contain_text("step 45")
    expect(page.locator(".timeline .span").first).to_be_visible()
    explanation = page.locator(".explanation")
    expect(explanation).to_contain_text("Likely cause")
    expect(explanation).to_contain_text("Next")
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.get_by_role("region", name="Alerts").get_by_role("row").nth(1)).to_contain_text("45")
    explanation.get_by_role("link", name="Show in the heat map").click()
    expect(page).to_have_url(re.compile("first=5&last=85"))
    expect(page.locator(".heat-surface")).to_be_visible()


def test_rules_run_over_a_stored_run_when_asked(visit):
    page = visit("?run=changed&screen=alerts")
    run_rules = page.get_by_role("button", name="Run the rules again")
    run_rules.click()
    expect(run_rules).to_have_count(0)
    expect(
        page.get_by_text(re.compile("The rules found nothing|replaying the rules over the stored steps"))
    ).to_be_visible()


def test_the_model_shows_shapes_shares_and_newest_numbers(visit):
    page = visit("?run=healthy&screen=model")
    head = page.get_by_role("row").filter(has_text="head").first
    expect(head).to_contain_text("Linear")
    weight = page.get_by_role("row").filter(has_text="1 \u00d7 16")
    expect(weight).to_have_count(1)
    expect(weight.get_by_role("link").first).to_be_visible()
    page.get_by_label("Find a module").fill("tanh")
    expect(page.get_by_role("row").filter(has_text="Tanh")).to_have_count(3)


def test_the_model_is_walked_and_opened_by_keys(visit):
    page = visit("?run=healthy&screen=model")
    rows = page.locator(".model-row:not(.is-head)")
    expect(rows.first).to_contain_text("Net")
    everything = rows.count()
    for key in ("j", "j", "k"):
        page.keyboard.press(key)
    current = page.locator(".model-row.is-current")
    expect(current).to_contain_text("Net")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    page.keyboard.press("Enter")
    expect(rows).to_have_count(everything)
    page.keyboard.press("j")
    expect(current).to_contain_text("first")
    page.keyboard.press("Escape")
    expect(current).to_have_attribute("aria-expanded", "false")
    expect(current).to_contain_text("first")
    page.keyboard.press("/")
    page.keyboard.type("blocks.1.0")
    page.keyboard.press("ArrowDown")
    expect(current).to_contain_text("blocks.1.0")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Find a module")).to_have_value("")
    expect(current).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("j")
    expect(current).to_contain_text("weight")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("screen=series&series=[a-z]+\\|blocks.1.0.weight"))


def test_keys_on_a_button_of_the_model_are_for_the_button(visit):
    page = visit("?run=healthy&screen=model")
    rows = page.locator(".model-row:not(.is-head)")
    expect(rows.first).to_contain_text("Net")
    page.keyboard.press("j")
    page.get_by_role("button", name="Unfold all").focus()
    page.keyboard.press("Enter")
    expect(rows.filter(has_text="Tanh")).to_have_count(3)
    expect(rows.first).to_have_attribute("aria-expanded", "true")
    page.get_by_role("button", name="Close blocks").click()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)


def test_settings_tell_config_environment_and_what_is_off(visit):
    page = visit("?run=healthy&screen=settings")
    expect(page.get_by_text("None: all parts of the monitor")).to_be_visible()
    expect(page.get_by_text(vario.__version__, exact=True)).to_be_visible()
    expect(page.get_by_text("gradient, weight, activation, update")).to_be_visible()


@thorough
def test_ranks_of_a_distributed_run_stand_side_by_side(browser, tmp_path):
    done = run_ranks([EXAMPLE], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("vario_runs/*/run.json")
    with serving(path.parent) as server:
        visit = Visitor(browser, f"http://127.0.0.1:{server.port}/")
        page = visit("?run=.&screen=ranks")
        expect(page.locator(".chart-legend li")).to_have_count(2)
        expect(page.get_by_role("row").filter(has_text="finished")).to_have_count(2)
        page.get_by_label("Quantity").select_option("gradient_local")
        expect(page.get_by_role("figure")).to_contain_text("gradient local")
        expect(page.locator(".chart-legend li").nth(1)).to_contain_text(re.compile(r"rank 1\s*\d"))
        page.get_by_role("link", name="Home").click()
        page.get_by_label("Rank").select_option("spread")
        expect(page).to_have_url(re.compile("rank=spread"))
        expect(page.locator(".heat-surface")).to_be_visible()
        visit.leave()
