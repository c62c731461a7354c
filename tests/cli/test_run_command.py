"""`vario run`, from the outside: an unchanged script, started as users start it."""

import json

import pytest

from starting import run_afresh, run_warm

SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 4)).square().mean()
    loss.backward()
    optimizer.step()
print(sys.argv[1:], __name__)
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 0)
"""


def started_afresh(folder, *words):
    return run_afresh(["-W", "error", "-m", "vario", *words], cwd=folder)


def started(folder, *words):
    return run_warm(["-W", "error", "-m", "vario", *words], cwd=folder)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.slow
def test_a_script_is_watched_and_gets_its_own_arguments(script):
    options = ["--quantities", "gradient", "--name", "one"]
    result = started_afresh(script, "run", *options, "train.py", "--lr", "3", "--json")
    assert result.returncode == 0, result.stderr
    assert result.stdout == "['--lr', '3', '--json'] __main__\n"
    shown = started(script, "show", "one", "2.weight", "--quantity", "gradient", "--json")
    assert shown.returncode == 0, shown.stderr
    (series,) = json.loads(shown.stdout)
    assert series["steps"] == list(range(6))
    assert all(value > 0 for value in series["values"])


@pytest.mark.slow
def test_a_module_is_watched_and_its_exit_code_passed_on(script):
    result = started(script, "run", "-m", "train", "7")
    assert result.returncode == 7, result.stderr
    assert result.stdout == "['7'] __main__\n"
    listed = json.loads(started(script, "ls", "--json").stdout)
    assert [run["last_step"] for run in listed] == [5]


def test_a_wrong_option_is_refused_before_the_script_starts(script):
    result = started(script, "run", "--quantities", "gradiant", "train.py")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == "vario: quantities: unknown 'gradiant'. Did you mean 'gradient'?\n"


def test_a_missing_script_is_refused(tmp_path):
    result = started(tmp_path, "run", "nothing.py")
    assert result.returncode == 2
    assert "nothing.py" in result.stderr
    assert result.stderr.count("\n") == 1
