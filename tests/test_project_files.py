"""What lies around the code agrees with it: version, metadata, news fragments, workflows, pages of the site."""

import re
import sys
from pathlib import Path

import pytest
import yaml

import vario

if sys.version_info >= (3, 11):
    import tomllib  # novermin
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
KINDS = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
FRAGMENTS = [path for path in sorted((ROOT / "changes").glob("*.md")) if path.name != "README.md"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MADE_BY_THE_SITE = re.findall(r'"(\S+\.md)"(?:,|\n)', (ROOT / "tools" / "site_pages.py").read_text(encoding="utf8"))


def test_the_version_stands_in_one_place_and_the_citation_repeats_it():
    assert "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/vario/core/package.py"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf8"))
    assert str(citation["version"]) == vario.__version__
    assert citation["license"] == PROJECT["project"]["license"]


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_fragment_is_of_a_known_kind_and_says_something(path):
    assert path.name.split(".")[-2] in KINDS
    assert path.read_text(encoding="utf8").strip()


def test_the_changelog_has_the_place_where_releases_go():
    start = PROJECT["tool"]["towncrier"]["start_string"]
    assert (ROOT / "CHANGELOG.md").read_text(encoding="utf8").count(start) == 1


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_make_targets_that_exist(path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf8"), flags=re.MULTILINE))
    jobs = yaml.safe_load(path.read_text(encoding="utf8"))["jobs"].values()
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    assert commands
    for command in commands:
        assert re.fullmatch(r"make [a-z-]+", command), command
        assert command.split()[1] in targets


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.name
)
def test_an_issue_form_has_what_the_form_needs(path):
    form = yaml.safe_load(path.read_text(encoding="utf8"))
    if path.name != "config.yml":
        assert {"name", "description", "body"} <= set(form)
        assert len({part["id"] for part in form["body"]}) == len(form["body"])


def test_every_extra_is_on_the_install_page():
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf8")
    listed = re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)
    assert sorted(listed) == sorted(PROJECT["project"]["optional-dependencies"])


def test_the_api_page_has_every_public_name():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf8")
    assert sorted(re.findall(r"^::: vario\.(\w+)$", page, flags=re.MULTILINE)) == sorted(vario.__all__)


def test_every_page_is_in_the_navigation_of_the_site():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf8").partition("\nnav:\n")[2]
    shown = re.findall(r"(\S+\.md)$", text, flags=re.MULTILINE)
    assert len(shown) == len(set(shown))
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(shown)
    assert set(shown) - pages <= set(MADE_BY_THE_SITE)


def test_the_glossary_is_in_alphabetical_order():
    page = (ROOT / "docs" / "glossary.md").read_text(encoding="utf8")
    words = [word.lower() for word in re.findall(r"^\| \*\*(.+?)\*\* \|", page, flags=re.MULTILINE)]
    assert words == sorted(words)
