"""What makes the page comfortable: names that can be read, marks at their place, clicks that do what one thinks."""

import json
import re

import pytest
from browsing import Visitor, box_of
from playwright.sync_api import expect
from web_client import serving

import made_runs
from vario.core.records import Scalars, StepRecord

pytestmark = pytest.mark.slow

ROWS = [f"blocks.{block}.{part}.{name}" for block in range(20) for part in ("attn", "mlp") for name in "abc"]
NAMES = ["embed.weight", *ROWS]
KINDS = ("change", "ratio", "pace")
MESSAGE = "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace operation"
SEVERITIES = ("page", "warn", "note", "note")


def alert(step, severity, target="head.weight"):
    told = {"rule": f"odd_{severity}_{step}", "kind": "exact", "rank": 0, "quantity": "gradient", "value": 1.0}
    return json.dumps(told | {"step": step, "severity": severity, "target": target, "text": f"{target} is odd"})


def bare(step, time, loss):
    return StepRecord(step, (), Scalars(step, time, {"loss": loss}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs with what makes pages uncomfortable."""
    place = tmp_path_factory.mktemp("comfort")
    long = [made_runs.record(step, made_runs.frame(step, targets=NAMES)) for step in range(4)]
    made_runs.write_run(place / "long", long)
    names = [f"{name}:{kind}" for kind in KINDS for name in NAMES]
    kinds = [made_runs.record(step, made_runs.frame(step, "update", names)) for step in range(3)]
    made_runs.write_run(place / "kinds", kinds)
    seldom = [made_runs.record(step, time=float(step)) for step in range(0, 1000, 50)]
    made_runs.write_run(
        place / "seldom", seldom, config={"statistics": made_runs.STATISTICS, "every": {"gradient": 50}}
    )
    lines = [alert(step, severity) for step, severity in zip((134, 300, 500, 700), SEVERITIES, strict=True)]
    (place / "seldom" / "rank0" / "alerts.jsonl").write_text("\n".join(lines))
    for name, shift in (("even", 0.0), ("odd", 0.5)):
        made_runs.write_run(place / name, [bare(step, 100 + step + shift * (step > 0), 1.5) for step in range(10)])
    made_runs.write_run(place / "crashed", [made_runs.record(step) for step in range(3)], close=None).close(
        "crashed", MESSAGE
    )
    made_runs.write_run(place / "other", [made_runs.record(5, made_runs.frame(5, "weight", ("x", "y")), lr=1.0)])
    return place


@pytest.fixture(scope="module")
def comfort(runs):
    with serving(runs) as server:
        yield server


@pytest.fixture
def open_page(browser, comfort):
    visitor = Visitor(browser, f"http://127.0.0.1:{comfort.port}/")
    yield visitor
    visitor.leave()


def middle(box):
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_a_map_of_many_rows_names_each_of_them_and_scrolls(open_page):
    page = open_page("?run=long&quantity=gradient")
    names = page.locator(".row-name")
    expect(names).to_have_count(len(NAMES))
    assert box_of(names.first)["height"] >= 11
    rows = page.locator(".heat-rows")
    assert rows.evaluate("box => box.scrollHeight > box.clientHeight + 100")
    assert rows.evaluate("box => box.scrollWidth <= box.clientWidth")
    assert box_of(page.locator(".heat-axis"))["y"] < 900
    page.locator(".heat-surface").focus()
    for _ in range(1 + len(NAMES) // 10):
        page.keyboard.press("Shift+ArrowDown")
    expect(page.locator(".heat [role=status]")).to_contain_text(NAMES[-1])
    assert rows.evaluate("box => box.scrollTop + box.clientHeight >= box.scrollHeight - 1")
    tip, seen = box_of(page.get_by_role("tooltip")), box_of(rows)
    assert tip["y"] < seen["y"] + seen["height"] + 20


def test_on_a_phone_the_first_row_of_a_module_names_it(open_page):
    page = open_page("?run=long&quantity=gradient", width=390, height=844)
    names = page.locator(".row-name")
    expect(names).to_have_count(len(NAMES))
    assert names.all_inner_texts()[:8] == ["embed.weight", "0.attn.a", "b", "c", "mlp.a", "b", "c", "1.attn.a"]
    rows, label = page.locator(".heat-rows"), page.locator(".block span")
    for share in (0, 1):
        rows.evaluate("(box, share) => { box.scrollTop = share * box.scrollHeight }", share)
        seen, told = box_of(rows), box_of(label)
        assert seen["y"] <= told["y"]
        assert told["y"] + told["height"] <= seen["y"] + seen["height"]


def test_modules_of_very_many_rows_begin_folded_and_each_says_its_kind(open_page):
    page = open_page("?run=kinds&quantity=update")
    folded = page.get_by_role("button", name=re.compile("^▸"))
    expect(folded).to_have_count(len(KINDS) * 20 * 2)
    for kind in KINDS:
        block = page.get_by_role("button", name=f"Fold blocks:{kind}", exact=True)
        expect(block).to_contain_text(f"blocks:{kind}")
    folded.first.click()
    expect(folded).to_have_count(len(KINDS) * 20 * 2 - 1)
    expect(page).to_have_url(re.compile("closed=%21blocks.0.attn:change"))
    page.reload()
    expect(folded).to_have_count(len(KINDS) * 20 * 2 - 1)
    page.get_by_role("button", name="Fold blocks:ratio", exact=True).click()
    expect(page.get_by_role("button", name="▸ blocks:ratio")).to_contain_text("120")
    page.get_by_role("button", name="Unfold all modules").click()
    expect(page.locator(".row-name")).to_have_count(len(KINDS) * len(NAMES))
    page.get_by_role("button", name="Fold blocks:pace", exact=True).dblclick()
    expect(page.get_by_label("Filter rows by name")).to_have_value("blocks :pace")
    expect(page.locator(".heat-note")).to_contain_text("120 rows")


def test_a_module_with_little_room_shows_its_kind_first(visit):
    page = visit("?run=healthy&quantity=update")
    expect(page.get_by_role("button", name="Fold blocks:ratio", exact=True)).to_have_text(":ratio")


def test_all_modules_are_one_stop_of_the_tab_key_and_arrows_move_between_them(open_page):
    page = open_page("?run=long&quantity=gradient")
    expect(page.locator(".heat-surface")).to_be_visible()
    page.get_by_role("button", name="Table").focus()
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Fold blocks", exact=True)).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("button", name="Fold blocks.0", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    folded = page.get_by_role("button", name="▸ 0")
    expect(folded).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".heat-surface")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(folded).to_be_focused()


def test_a_search_without_a_match_says_so_however_few_rows_there_are(open_page):
    page = open_page("?run=seldom&quantity=gradient")
    expect(page.locator(".heat-surface")).to_be_visible()
    page.get_by_label("Filter rows by name").fill("nothing like it")
    expect(page.get_by_text("No rows match 'nothing like it'")).to_be_visible()
    expect(page.locator(".legend")).to_have_count(0)
    page.get_by_role("button", name="Show all rows").click()
    expect(page.locator(".heat-surface")).to_be_visible()


def test_an_incident_stands_where_its_step_is_on_the_axis(open_page):
    page = open_page("?run=seldom&quantity=gradient")
    surface = box_of(page.locator(".heat-surface"))
    at = surface["x"] + (0.5 + 134 / 50) / 20 * surface["width"]
    flag = page.get_by_role("button", name=re.compile("^Step 134"))
    assert middle(box_of(flag))[0] == pytest.approx(at, abs=1.5)
    assert middle(box_of(page.locator(".ring.is-page")))[0] == pytest.approx(at, abs=1.5)
    labels = [label for label in page.locator(".heat-axis span").all() if label.inner_text() in ("100", "200")]
    left, right = (middle(box_of(label))[0] for label in labels)
    assert at == pytest.approx(left + 0.34 * (right - left), abs=1.5)


def test_the_heat_map_of_an_incident_has_columns_around_it(open_page):
    page = open_page("?run=seldom&screen=alerts&incident=2")
    page.get_by_role("link", name="Show in the heat map").click()
    expect(page).to_have_url(re.compile("first=0&last=1000"))
    expect(page.locator(".heat-note")).to_contain_text("20 columns")


def test_notes_are_counted_apart_everywhere_and_flagged_in_grey(open_page):
    page = open_page("?run=seldom&quantity=gradient")
    expect(page.get_by_label("Screens").get_by_role("link", name="Alerts")).to_have_text("Alerts2")
    expect(page.get_by_label("Root cause")).to_contain_text("All: 2 alerts, 2 notes")
    colors = {
        severity: page.locator(f".flag.is-{severity}").first.evaluate("flag => getComputedStyle(flag).color")
        for severity in ("page", "warn", "note")
    }
    assert len(set(colors.values())) == 3
    red, green, blue = map(int, re.findall(r"\d+", colors["note"]))
    assert max(red, green, blue) - min(red, green, blue) < 40
    page.get_by_label("Root cause").get_by_role("link", name="All: 2 alerts, 2 notes").click()
    expect(page.get_by_role("heading", name="2 alerts, 2 notes")).to_be_visible()
    page.goto(open_page.address)
    row = page.get_by_role("row").filter(has_text="seldom")
    expect(row.locator(".count")).to_have_count(2)


def test_the_last_curve_can_be_removed_and_stays_so(open_page):
    page = open_page("?run=even&screen=series&series=scalar|loss|value")
    page.get_by_role("button", name="Remove loss").click()
    expect(page.get_by_text("No series selected")).to_be_visible()
    page.reload()
    expect(page.get_by_text("No series selected")).to_be_visible()
    for screen in ("Ranks", "Compare"):
        page.get_by_role("link", name=screen, exact=True).click()
        expect(page.locator(".card").first).to_be_visible()
    page.go_back()
    page.go_back()
    page.go_back()
    expect(page.get_by_role("figure")).to_contain_text("loss")


def test_removing_says_whether_a_run_goes_or_a_series_of_all_runs(open_page):
    page = open_page("?run=even&screen=series&runs=odd&series=scalar|loss|value")
    legend = page.locator(".chart-legend li")
    expect(legend).to_have_count(2)
    button = legend.nth(1).get_by_role("button")
    expect(button).to_have_attribute("title", "Remove the run odd from the charts")
    expect(legend.first.get_by_role("button")).to_have_attribute("title", "Remove loss of all runs")
    button.click()
    expect(legend).to_have_count(1)
    expect(page).to_have_url(re.compile(r"series=scalar\|loss\|value$"))


def test_over_time_each_of_two_runs_has_its_value_under_the_cursor(open_page):
    page = open_page("?run=even&screen=series&runs=odd&series=scalar|loss|value&x=time")
    box = box_of(page.locator(".u-over"))
    for share in (0.31, 0.52, 0.77):
        page.mouse.move(box["x"] + share * box["width"], box["y"] + 40)
        for value in page.locator(".chart-legend b").all():
            expect(value).to_have_text("1.5")


def test_a_click_anywhere_on_a_row_opens_its_run_but_not_beside_its_checkbox(open_page):
    page = open_page()
    row = page.get_by_role("row").filter(has_text="seldom")
    expect(page.get_by_role("columnheader", name="Time")).to_be_visible()
    expect(row).to_contain_text("took")
    row.locator(".runs-pick").click(position={"x": 2, "y": 2})
    row.get_by_role("checkbox").check()
    expect(page.get_by_text("1 run selected")).to_be_visible()
    row.locator(".runs-spark").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("seldom")


@pytest.mark.parametrize("width", [390, 820])
def test_the_error_of_a_crashed_run_stays_inside_its_row(open_page, width):
    page = open_page(width=width, height=844)
    row = page.get_by_role("row").filter(has_text="crashed")
    outer = box_of(row)
    for inner in (box_of(row.locator(".red-text")), box_of(row.locator(".runs-step"))):
        assert inner["y"] + inner["height"] <= outer["y"] + outer["height"] - 4
    meter = page.get_by_role("row").filter(has_text="seldom").locator(".runs-step")
    assert box_of(meter)["width"] > 0


def test_runs_with_nothing_in_common_are_not_said_to_agree(open_page):
    page = open_page("?run=even&screen=compare&runs=other")
    said = page.get_by_label("First divergence")
    expect(said).to_contain_text("Nothing to compare: they share no recorded series")
    expect(said).to_have_class(re.compile("neutral"))
    expect(page.get_by_text("Only in one run")).to_have_count(0)
    expect(page.get_by_text("Difference by layer")).to_have_count(0)
    # What it asked for before it knew is refused.
    assert all("400" in complaint for complaint in open_page.complaints)
    open_page.complaints.clear()


def test_short_names_of_a_table_stand_as_high_as_its_numbers(open_page):
    page = open_page("?run=seldom&quantity=gradient&table=1")
    row = page.get_by_role("row").filter(has_text="head.weight")
    number = row.get_by_role("cell").nth(1)
    text = "cell => { const range = document.createRange(); range.selectNodeContents(cell);"
    text += " const box = range.getBoundingClientRect(); return box.y + box.height / 2; }"
    assert row.locator(".name").evaluate(text) == pytest.approx(number.evaluate(text), abs=2)


def test_numbers_of_the_model_are_whole_on_a_phone(visit):
    page = visit("?run=healthy&screen=model", width=390, height=844)
    scroll = box_of(page.locator(".model-scroll"))
    count = box_of(page.get_by_role("row").nth(1).get_by_role("gridcell").nth(1))
    assert count["x"] + count["width"] <= scroll["x"] + scroll["width"]


def test_the_ends_of_a_scale_do_not_cover_its_numbers(visit):
    page = visit("?run=healthy&screen=compare&runs=changed")
    box_of(page.locator(".legend-end").nth(1))
    # At one moment: the scale gets other numbers when it is known where the runs diverge.
    high, numbers = page.locator(".legend").evaluate(
        """legend => [
            legend.querySelectorAll(".legend-end")[1].getBoundingClientRect().left,
            [...legend.querySelectorAll(".legend-scale span")].map((number) => number.getBoundingClientRect().right),
        ]"""
    )
    assert numbers
    assert max(numbers) < high
