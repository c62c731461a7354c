"""What is said on releases that are too old, and what the metadata promises."""

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib  # novermin
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

OLD_TORCH = """
__version__ = "2.5.1+cu121"
class Linear:
    __module__ = "torch.nn"
"""
"""A torch that has nothing vario could use: what is said must not depend on what an old one has."""


def python(folder, *arguments):
    """Run Python with the packages of a folder ahead of all others."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def package(folder, name, text):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(textwrap.dedent(text))


@pytest.fixture
def old_torch(tmp_path):
    package(tmp_path, "torch", OLD_TORCH)
    return tmp_path


@pytest.mark.parametrize(
    "call", ["watch(torch.Linear())", "predict_memory(torch.Linear(), 1)", "count_parameters(torch.Linear())"]
)
def test_an_old_torch_is_refused_in_one_sentence(old_torch, call):
    done = python(old_torch, "-c", f"import torch, vario; vario.{call}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "vario.core.errors.UnsupportedRelease: vario needs torch 2.6 or newer; this is torch 2.5.1+cu121. "
        "Upgrade with: pip install --upgrade 'torch>=2.6'"
    )


def test_a_script_on_an_old_torch_runs_as_without_vario_and_is_told_why_nothing_was_recorded(old_torch):
    (old_torch / "train.py").write_text("import torch; print('trained on', torch.__version__)")
    done = python(old_torch, "-m", "vario", "run", "train.py")
    assert (done.returncode, done.stdout) == (0, "trained on 2.5.1+cu121\n")
    assert "vario needs torch 2.6 or newer; this is torch 2.5.1+cu121" in done.stderr
    assert "Traceback" not in done.stderr


def test_old_transformers_are_refused_in_one_sentence(tmp_path):
    package(tmp_path, "transformers", "__version__ = '4.41.2'")
    done = python(tmp_path, "-c", "import vario; vario.MonitorCallback")
    assert done.stderr.splitlines()[-1] == (
        "vario.core.errors.UnsupportedRelease: vario.MonitorCallback needs transformers 4.50 or newer; this is "
        "transformers 4.41.2. Upgrade with: pip install --upgrade 'transformers>=4.50'"
    )


def test_an_old_python_is_refused_in_one_sentence(tmp_path):
    done = python(tmp_path, "-c", "import sys; sys.version_info = (3, 9, 7, 'final', 0); import vario")
    assert done.stderr.splitlines()[-1] == (
        "vario.core.errors.UnsupportedRelease: vario needs Python 3.10 or newer; this is Python 3.9. "
        "Create an environment with a newer one: python3.12 -m venv .venv"
    )


@pytest.mark.parametrize("name", ["__init__", "core/__init__", "core/errors", "core/package"])
def test_an_old_python_can_read_what_refuses_it(name):
    ast.parse((ROOT / "src" / "vario" / f"{name}.py").read_text(), feature_version=(3, 8))


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0a0+ecf3bae40a.nv25.01", "2.15.0", "3.0.0", "nightly"])
def test_other_versions_are_let_through(tmp_path, version):
    code = f"from vario.core.package import refuse_older; refuse_older('torch', {version!r}, (2, 6), 'vario')"
    assert python(tmp_path, "-c", code).returncode == 0


def test_metadata_and_docs_name_the_same_releases():
    pythons = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: 3." in line]
    assert pythons == ["3.10", "3.11", "3.12", "3.13"]
    assert PROJECT["requires-python"] == f">={pythons[0]}"
    for path in ("README.md", "docs/versions.md"):
        text = " ".join((ROOT / path).read_text().split())
        assert "Python 3.10 to 3.13" in text
        assert "torch 2.6 to 2.13" in text
        assert "transformers 4.50 to 5.22" in text
    extras = PROJECT["optional-dependencies"]
    assert (extras["torch"], extras["transformers"]) == (["torch>=2.6"], ["transformers>=4.50"])
