"""The figures screen in a real browser."""

import pytest
from matplotlib.figure import Figure
from playwright.sync_api import expect
from web_client import serving

import vario

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    with vario.start("run", directory=folder) as run:
        for step in range(3):
            run.log(reward=step)
            figure = Figure(figsize=(2 + step, 2))
            figure.subplots().plot([1, 2, step])
            run.log_figure("returns", figure)
            run.log_table("<img src=x onerror=alert(1)>", [{"text": f"<script>alert({step})</script>", "n": step}])
    with vario.start("plain", directory=folder) as run:
        run.log(a=1)
    with serving(folder) as found:
        yield found


def test_figures_and_tables_are_shown_with_their_steps(visit):
    page = visit("?run=run")
    page.get_by_role("link", name="Figures").click()
    figure = page.get_by_role("img", name="returns at step 2")
    expect(figure).to_be_visible()
    page.wait_for_function("[...document.images].every(image => image.naturalWidth > 0)")
    assert figure.evaluate("image => image.naturalWidth") == 400
    page.get_by_label("Step of returns").fill("0")
    expect(page.get_by_role("img", name="returns at step 0")).to_be_visible()
    expect(page.get_by_role("cell", name="<script>alert(2)</script>")).to_be_visible()
    page.get_by_label("Find a figure or table").fill("returns")
    expect(page.get_by_role("table")).to_have_count(0)


def test_a_run_without_any_has_no_such_tab(visit):
    page = visit("?run=plain")
    expect(page.get_by_role("link", name="Settings")).to_be_visible()
    expect(page.get_by_role("link", name="Figures")).to_have_count(0)
    page = visit("?run=plain&screen=figures")
    expect(page.get_by_role("heading", name="No figures or tables")).to_be_visible()


def test_the_home_of_a_run_without_a_model_shows_its_own_numbers(visit):
    page = visit("?run=run")
    expect(page.get_by_text("reward")).to_be_visible()
