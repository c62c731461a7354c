"""The pages are true: generated ones are fresh, snippets run, links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import vario

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def page_name(path):
    return str(path.relative_to(ROOT))


def test_generated_pages_are_fresh():
    command = [sys.executable, str(ROOT / "tools" / "make_docs.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, f"{result.stderr}Run `make docs`."


@pytest.mark.parametrize("page", [page for page in PAGES if SNIPPET.search(page.read_text("utf8"))], ids=page_name)
def test_the_snippets_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf8")
    namespace = {"__name__": "__main__"}
    for snippet in SNIPPET.finditer(text):
        # Line numbers of a failure are those of the page.
        lines_before = text[: snippet.start(1)].count("\n")
        exec(compile("\n" * lines_before + snippet[1], str(page), "exec"), namespace)
    # torch remembers classes, a class its functions, and these the names around them: no model may outlive its page.
    namespace.clear()
    # Each page that watches something leaves its runs behind, whole.
    assert all(run.state == "finished" for run in vario.list_runs("vario_runs"))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_inside_the_project_lead_somewhere(page):
    text = page.read_text(encoding="utf8")
    for target in LINK.findall(text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            linked = (page.parent / path).resolve() if path else page
            assert linked.exists(), f"{target} does not exist"
            if anchor:
                assert anchor in anchors(linked.read_text(encoding="utf8")), f"{target} has no such heading"


def anchors(text):
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_a_page_mentions_no_place_of_one_machine(page):
    assert not re.search(r"/(home|root|work|Users)/", page.read_text(encoding="utf8"))
