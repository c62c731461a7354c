"""The package of docs/extending.md: installed as its page says, used from outside of vario."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vario

tomllib = pytest.importorskip("tomllib")
pytest.importorskip("torch")

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"
SCRIPTS = ("train.py", "train_plain.py")
FILE = re.compile(r"^```(?:py|toml)\n# (\S+)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
KINDS = {"rules", "statistics", "probes", "sinks", "notices", "backends.frameworks"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder in which train.py of the page ran, and a function that runs Python where its package is installed."""
    folder = tmp_path_factory.mktemp("extending")
    installed = folder / "installed"
    files = dict(FILE.findall(PAGE.read_text(encoding="utf8")))
    for name, text in files.items():
        place = folder if name in SCRIPTS else installed
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf8")
    (installed / "training_checks" / "__init__.py").touch()
    project = tomllib.loads(files["pyproject.toml"])["project"]
    metadata = installed / "training_checks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    groups = project["entry-points"]
    assert {group.removeprefix("vario.") for group in groups} == KINDS
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in parts.items()) for group, parts in groups.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    paths = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH", "")]))

    def python(*words):
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.run(
            [sys.executable, "-W", "error", *words], cwd=folder, env=environment, capture_output=True, text=True
        )

    done = python("train.py")
    assert done.returncode == 0, done.stderr
    return folder, python, done.stdout


def test_its_training_shows_every_part_at_work(trained):
    folder, _, printed = trained
    run = vario.open_run(folder / "vario_runs" / "extended")
    assert not run.parts_off
    assert len(run.series("load_average", "scalar").steps) == 40
    assert len(run.series("0.weight", "gradient_sign", "mean").steps) == 40
    assert "'2.weight'" in printed.splitlines()[-1]
    lines = (folder / "vario_runs" / "extended.losses.jsonl").read_text().splitlines()
    assert {json.loads(line)["step"] for line in lines} == set(range(40))
    assert "extended" in (folder / "incidents.txt").read_text()


def test_parts_lists_them(trained):
    _, python, _ = trained
    rows = json.loads(python("-m", "vario", "parts", "--json").stdout)
    ours = {row["name"] for row in rows if row["origin"].startswith("training_checks")}
    assert {"large_weight", "crest", "gradient_sign", "loss_lines", "file", "plain"} <= ours


def test_its_rule_explains_itself(trained):
    _, python, _ = trained
    assert "no weight should get there" in python("-m", "vario", "rules", "large_weight").stdout


def test_its_rule_can_be_replayed_with_another_limit(trained):
    _, python, _ = trained
    words = ["-m", "vario", "check", "extended", "--rule", "large_weight"]
    assert python(*words, "--set", "large_weight.limit=10").returncode == 1
    assert python(*words, "--set", "large_weight.limit=1000").returncode == 0


def test_its_backend_records_what_every_backend_does(trained):
    folder, python, _ = trained
    done = python("train_plain.py")
    assert done.returncode == 0, done.stderr
    run = vario.open_run(folder / "vario_runs" / "plain")
    assert not run.parts_off
    assert run.steps("gradient").tolist() == run.steps("weight").tolist() == list(range(20))
    # The error falls by a constant factor: 1 - 0.05 * 2 * 3.
    np.testing.assert_allclose(
        run.series("slope", "gradient", "norm").values, 5 * np.sqrt(2) * 0.7 ** np.arange(20), rtol=1e-9
    )
    assert {"moment", "activation", "update", "scalar:DeviceMemory"} <= {found.quantity for found in run.not_offered}
    assert "torch" not in run.versions
