"""What ends up in the wheel."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]


@pytest.fixture
def unpacked(tmp_path):
    wheel = next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"]))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    return tmp_path / "site"


def test_the_installed_package_has_all_that_the_checkout_has(unpacked):
    packaged = {str(path.relative_to(unpacked)) for path in (unpacked / "vario").rglob("*.py")}
    assert packaged == {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "vario").rglob("*.py")}
    assert (unpacked / "vario" / "py.typed").exists()
    assert (unpacked / "vario" / "backends" / "native" / "reduce.c").exists()


def test_the_dashboard_for_grafana_travels_with_the_package(unpacked):
    packaged = unpacked / "vario" / "demo_text" / "grafana" / "vario.json"
    assert packaged.read_bytes() == (ROOT / "docs" / "grafana" / "vario.json").read_bytes()


def test_a_wheel_with_the_library_is_for_this_machine_alone(unpacked):
    library = unpacked / "vario" / "backends" / "native" / "reduce.so"
    tags = next(unpacked.glob("vario-*.dist-info/WHEEL")).read_text(encoding="utf8")
    if library.exists():
        code = "from vario.backends import native; print(native.library is not None)"
        environment = {"PYTHONPATH": str(unpacked), "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=unpacked, env=environment, capture_output=True, text=True
        )
        assert done.stdout.strip() == "True", done.stderr
        assert "Tag: py3-none-any" not in tags
    else:
        assert "Tag: py3-none-any" in tags


def test_the_demo_finds_its_text_in_the_installed_package(unpacked):
    code = "import vario.demo; print(vario.demo.__file__, len(vario.demo.documentation()))"
    environment = {"PYTHONPATH": str(unpacked), "PATH": ""}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=unpacked, env=environment, capture_output=True, text=True, check=True
    )
    place, length = result.stdout.split()
    assert Path(place).is_relative_to(unpacked)
    assert int(length) > 10_000
