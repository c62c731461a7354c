import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vario

HEAVY = ["torch", "numpy", "pyarrow", "pandas", "duckdb", "transformers", "lightning", "accelerate", "mindspore"]
ROOT = Path(__file__).parents[1]


def heavy_modules_after(code, heavy):
    check = f"{code}\nimport sys\nprint([name for name in {heavy!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-1]


def test_importing_vario_imports_no_framework_and_nothing_large():
    assert heavy_modules_after("import vario", [*HEAVY, "rich", "argparse"]) == "[]"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["ls", "--help"], ["nothing"]])
def test_help_imports_nothing_large(words):
    code = f"from vario.cli import main\ntry:\n    main({words!r})\nexcept SystemExit:\n    pass"
    assert heavy_modules_after(code, [*HEAVY, "rich"]) == "[]"


def test_public_names_are_the_documented_ones():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")
    section = page.partition("## Public names")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == sorted(vario.__all__, key=str.lower)


@pytest.mark.parametrize("name", vario.__all__)
def test_every_public_name_is_there_and_says_what_it_is(name):
    found = getattr(vario, name)
    assert found.__doc__


@pytest.mark.parametrize("name", ["config.read_config", "rules.rule", "integrations", "compat"])
def test_modules_are_there_after_importing_vario_alone(name):
    code = f"import vario; assert callable(vario.{name}) or vario.{name}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vario' has no attribute 'wacth'"):
        vario.wacth  # noqa: B018


def test_the_version_is_that_of_the_installed_package():
    assert vario.__version__ == importlib.metadata.version("vario")


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src" / "vario" / "py.typed").exists()
