"""Who installs the wheel needs no Node: the built pages are in it, though they are not committed."""

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


def test_the_built_pages_are_packed_into_the_wheel(tmp_path):
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    built = ROOT / "src" / "vario" / "web" / "built"
    expected = {f"vario/web/built/{path.relative_to(built)}" for path in built.rglob("*") if path.is_file()}
    assert "vario/web/built/index.html" in expected
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("vario/web/built/")}
    assert packed == expected


def test_the_gallery_is_packed_with_its_pictures(tmp_path):
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert "vario/demo_text/gallery.md" in names
    pictures = {Path(name).name for name in names if name.endswith(".png")}
    assert pictures == {path.name for path in (ROOT / "docs" / "images").glob("gallery-*.png")}
