import importlib
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


@pytest.mark.parametrize("name", ["config.read_config", "rules.rule", "integrations", "compat.mindformers.load_yaml"])
def test_modules_are_there_after_importing_vario_alone(name):
    code = f"import vario; assert callable(vario.{name}) or vario.{name}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_yaml_of_mindspore_transformers_is_read_by_a_name_of_vario():
    from vario.compat.mindformers import load_yaml

    assert vario.load_yaml is load_yaml
    assert "load_yaml" not in dir(vario)


def test_there_are_few_public_names():
    assert len(vario.__all__) <= 23
    assert dir(vario) == sorted(vario.__all__)


@pytest.mark.parametrize("name", ["Frame", "count_parameters", "check_gradient_health", "MemoryPrediction"])
def test_a_name_that_moved_works_and_says_where_it_is(name):
    with pytest.warns(
        DeprecationWarning, match=rf"vario\.{name} is deprecated: use `from vario\.\S+ import {name}`"
    ) as seen:
        found = getattr(vario, name)
    home = re.search(r"from (\S+) import", str(seen[0].message))[1]
    assert found is getattr(importlib.import_module(home), name)
    assert seen[0].filename == __file__


def test_every_name_that_moved_is_where_it_is_said_to_be():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf8")
    moved = re.findall(r"^::: (vario\.\w+\.[\w.]+)\.(\w+)$", page, flags=re.MULTILINE)
    moved.remove(("vario.training.run_log", "RunLog"))  # what `start` returns; it was never public
    assert len(moved) == 12
    for home, name in moved:
        with pytest.warns(DeprecationWarning, match=f"from {re.escape(home)} import {name}"):
            assert getattr(vario, name) is getattr(importlib.import_module(home), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'vario' has no attribute 'wacth'"):
        vario.wacth  # noqa: B018


def test_the_version_is_that_of_the_installed_package():
    assert vario.__version__ == importlib.metadata.version("vario")


def test_the_package_says_that_it_is_typed():
    assert (ROOT / "src" / "vario" / "py.typed").exists()
