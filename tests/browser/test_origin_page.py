"""Where a run comes from, in a real browser: the settings screen, two runs compared, the search of the list."""

import pytest
from playwright.sync_api import expect
from web_client import serving

import vario
from vario.core.run_format import DIFF, OUTPUT
from vario.store.folder import write_json

pytestmark = pytest.mark.slow

MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("origins")
    for name, commit in (("first", "a" * 40), ("second", "b" * 40)):
        with vario.start(name, directory=folder, params={"lr": len(name)}, origin=[]) as run:
            for step in range(5):
                run.log(loss=1 / (step + 1))
        code = {"commit": commit, "branch": MARKUP, "subject": "Tune it", "changed": ["train.py"], "untracked": []}
        packages = {f"package{number}": "1.0" if number else name for number in range(3)}
        facts = {"directory": "/somewhere", "environment": {"OMP_NUM_THREADS": "1"}, "packages": packages}
        write_json(run.path / "rank0" / "origin.json", {"code": code, "seeds": {"torch": 3}, **facts})
        (run.path / "rank0" / DIFF).write_text(f"--- a\n+++ b\n-old\n+{MARKUP}\n")
        (run.path / "rank0" / OUTPUT).write_text(f"epoch 1 of {name} {MARKUP}\n")
    with serving(folder) as found:
        yield found


def test_the_settings_show_code_output_and_packages(visit):
    page = visit("?run=first&screen=settings")
    expect(page.get_by_text("aaaaaaaaaaaa Tune it")).to_be_visible()
    expect(page.get_by_text(f"epoch 1 of first {MARKUP}")).to_be_visible()
    change = page.get_by_text(f"+{MARKUP}")
    expect(change).to_be_hidden()
    page.get_by_text("Changes since the commit").click()
    expect(change).to_be_visible()
    page.get_by_text("3 packages").click()
    expect(page.get_by_text("package0 first, package1 1.0")).to_be_visible()


def test_a_comparison_begins_with_what_was_set_differently(visit):
    page = visit("?run=first&screen=compare&runs=second")
    card = page.locator("section.card").filter(has=page.get_by_role("heading", name="Set differently"))
    rows = card.get_by_role("row")
    expect(rows.nth(1)).to_contain_text("params.lr")
    expect(card).to_contain_text("a" * 40)
    expect(card).to_contain_text("package package0")
    expect(card).not_to_contain_text("package1")
    assert card.bounding_box()["y"] < page.get_by_label("First divergence").bounding_box()["y"]


def test_runs_are_found_by_their_commit(visit):
    page = visit()
    expect(page.get_by_role("link", name="second")).to_be_visible()
    page.get_by_label("Search runs").fill("aaaaaa")
    expect(page.get_by_role("link", name="second")).to_have_count(0)
    expect(page.get_by_role("link", name="first")).to_be_visible()
