"""Parts of other packages, through their entry points: used, or named and left out."""

import json
import os
import subprocess
import sys

import pytest

import vario

RULE = """
from vario.rules import rule

@rule("exact")
def always_calm(step):
    "Finds nothing."
    return []
"""
PLAIN = """
import torch, vario
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""
TRAINING = PLAIN.replace("for _", "monitor = vario.watch(model, optimizer, name='watched', every=1)\nfor _")
UNUSABLE = {
    "missing": ("import nothing_of_that_name", "ModuleNotFoundError: No module named 'nothing_of_that_name'"),
    "broken": ("import vario.no_such_place", "ModuleNotFoundError: No module named 'vario.no_such_place'"),
    "leaving": ("raise SystemExit(3)", "SystemExit: 3"),
    "misplaced": ("part = 5", "TypeError: not such a part"),
    "unwritten": ("", "AttributeError: module 'unwritten' has no attribute 'part'"),
}


@pytest.fixture
def python(tmp_path):
    """Runs Python where a package is installed whose plug-ins are all unusable, but one."""
    installed = tmp_path / "installed"
    metadata = installed / "others-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    groups = ("vario.rules", "vario.probes", "vario.statistics", "vario.sinks")
    lines = [f"[{group}]\n" + "".join(f"{name} = {name}:part\n" for name in UNUSABLE) for group in groups]
    lines[0] += "calm = calm_rules:always_calm\n"
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    for name, (text, _) in UNUSABLE.items():
        (installed / f"{name}.py").write_text(text)
    (installed / "calm_rules.py").write_text(RULE)
    environment = {**os.environ, "PYTHONPATH": str(installed)}

    def run(*words):
        return subprocess.run([sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True)

    return run


def test_a_training_goes_on_without_plug_ins_that_cannot_be_used(python, tmp_path):
    done = python("-c", TRAINING)
    assert done.returncode == 0, done.stderr
    for name, (_, error) in UNUSABLE.items():
        assert f"rules: the plug-in '{name}' ({name}:part) was not loaded. {error}" in done.stderr
        assert done.stderr.count(f"plug-in '{name}'") == 4, "once for each kind"
    run = vario.open_run(tmp_path / "vario_runs" / "watched")
    assert run.steps().tolist() == [0, 1]
    listed = {part.part: part.error for part in run.parts_off}
    assert len(listed) == 4 * len(UNUSABLE)
    assert listed["plug-in of rules: missing"] == UNUSABLE["missing"][1]
    report = python("-m", "vario", "report", "vario_runs/watched")
    assert report.returncode == 0, report.stderr
    assert "plug-in of sinks: misplaced" in report.stdout


def test_a_script_runs_without_them(python, tmp_path):
    (tmp_path / "train.py").write_text(PLAIN)
    done = python("-m", "vario", "run", "--name", "launched", "train.py")
    assert done.returncode == 0, done.stderr
    assert vario.open_run(tmp_path / "vario_runs" / "launched").state == "finished"


def test_parts_shows_them_with_their_errors_and_the_one_that_works(python):
    rows = json.loads(python("-m", "vario", "parts", "--kind", "rules", "--json").stdout)
    found = {row["name"]: row.get("error") for row in rows if row["origin"].split(":")[0] in (*UNUSABLE, "calm_rules")}
    assert found == {"always_calm": None, **{name: error for name, (_, error) in UNUSABLE.items()}}
    assert "not loaded: SystemExit: 3" in python("-m", "vario", "parts").stdout


@pytest.mark.parametrize("option", ["rules=['missing']", "quantities=['missing']", "statistics=['missing']"])
def test_asking_for_one_says_why_it_is_not_there(python, option):
    key = option.partition("=")[0]
    done = python("-c", f"import vario; vario.Config({option})")
    error = f"{key}: 'missing' is a plug-in (missing:part) that was not loaded. {UNUSABLE['missing'][1]}"
    assert done.stderr.splitlines()[-1] == f"vario.core.errors.ConfigError: {error}"
