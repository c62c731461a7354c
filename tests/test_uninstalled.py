"""A copy of the package on PYTHONPATH, where nothing was installed: as on a cluster."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vario

SCRIPT = """
import torch, vario
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with vario.watch(model, optimizer, name="copied", every=1):
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture
def bare(tmp_path):
    """Runs Python where no package has metadata, not even numpy and pyarrow, as conda and systems sometimes have it."""
    place = tmp_path / "packages"
    place.mkdir()
    shutil.copytree(Path(vario.__file__).parent, place / "vario", ignore=shutil.ignore_patterns("__pycache__", "built"))
    for folder in map(Path, sys.path):
        if folder.name in ("site-packages", "dist-packages"):
            for entry in folder.iterdir():
                is_metadata = entry.suffix in (".dist-info", ".egg-info", ".egg-link", ".pth")
                if not is_metadata and not (place / entry.name).exists():
                    (place / entry.name).symlink_to(entry)
    environment = {**os.environ, "PYTHONPATH": str(place), "OMP_NUM_THREADS": "1"}

    def run(*words):
        # -S: whatever is installed for this interpreter is not looked for.
        command = [sys.executable, "-S", *words]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_a_copy_that_was_never_installed_watches_and_reports(bare, tmp_path):
    there = bare("-c", "import vario, importlib.metadata as m; print(vario.__file__, [*m.distributions()])")
    assert there.stdout.split() == [str(tmp_path / "packages" / "vario" / "__init__.py"), "[]"], there.stderr
    trained = bare("-c", SCRIPT)
    assert trained.returncode == 0, trained.stderr
    versions = vario.open_run(tmp_path / "vario_runs" / "copied").versions
    assert versions["vario"] == vario.__version__
    assert {"python", "numpy", "pyarrow", "torch"} <= set(versions)
    assert bare("-m", "vario", "--version").stdout == f"vario {vario.__version__}\n"
    report = bare("-m", "vario", "report", "vario_runs/copied", "--json")
    assert json.loads(report.stdout)["last_step"] == 2, report.stderr


def test_the_address_book_of_the_page_needs_no_metadata(bare):
    code = "from vario.web.api.openapi import document; print(document([])['info']['version'])"
    found = bare("-c", code)
    assert found.stdout.strip() == vario.__version__, found.stderr
