"""Pages that are made from real runs: the tutorial says what its commands print, the gallery finds its faults."""

import importlib
import sys
from pathlib import Path

import pytest

import vario
from thorough import thorough

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tool(monkeypatch):
    """Imports a file of tools/."""
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    yield importlib.import_module
    for name in ("make_gallery", "gallery_runs", "make_tutorial"):
        sys.modules.pop(name, None)


@thorough
@pytest.mark.slow
def test_the_tutorial_finds_the_nan_that_it_says_it_finds(tool, tmp_path):
    page = (ROOT / "docs" / "find-a-nan.md").read_text(encoding="utf8")
    folder = tmp_path / "tutorial"
    folder.mkdir()
    renewed = tool("make_tutorial").run_page(page, folder)
    for text in ("tensor([[4207]])", "step 131", "'unit:output'", "step 139: loss nan", "Nothing found"):
        assert text in renewed
        assert text in page
    first = vario.first_bad(vario.open_run(folder / "vario_runs" / "broken"))
    assert (first.step, first.target) == (131, "unit:output")


def test_the_gallery_shows_every_fault_of_its_tool(tool):
    gallery = tool("make_gallery")
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf8")
    for fault in gallery.FAULTS:
        assert f"## {fault.title}\n" in page
        assert f"(rule {fault.rule}," in page
        assert f"images/gallery-{fault.name}.png" in page


@thorough
@pytest.mark.slow
@pytest.mark.parametrize("name", ["layers_without_gradient", "repeated_data", "loss_scale_too_high"])
def test_a_fault_of_the_gallery_is_found_by_its_rule(tool, name, tmp_path):
    gallery = tool("make_gallery")
    fault = next(fault for fault in gallery.FAULTS if fault.train.__name__ == name)
    gallery.train(fault, tmp_path)
    diagnosis = vario.diagnose(vario.open_run(tmp_path / fault.name))
    assert diagnosis.first.lead.rule == fault.rule
