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
