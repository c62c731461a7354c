"""Whatever fails inside vario, training goes on with the same losses."""

import json
import os
from pathlib import Path

import pytest

from starting import run_warm

SCRIPT = Path(__file__).with_name("errors_inside.py")
EVERYTHING = ["gradient", "weight", "moment", "activation", "activation_gradient", "update", "unit", "attention"]
OPTIONS = {
    "default": [],
    "everything": ["every=1", f"quantities={json.dumps(EVERYTHING)}"],
    "light": ["overhead=1e-6"],
}


def noticed(phase, part, parts, *options):
    """Return where training noticed that a function of vario raised, and how many functions were called."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = run_warm([SCRIPT, phase, f"{part}/{parts}", *options], env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return found["noticed"], found["functions"]


@pytest.mark.parametrize("phase", ["attaching", "training", "writing"])
def test_training_does_not_notice_an_error_in_some_functions(phase):
    found, num_functions = noticed(phase, 3, 29)
    assert found == []
    assert num_functions > 300


@pytest.mark.thorough
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("phase", ["attaching", "training", "writing"])
def test_training_does_not_notice_an_error_in_any_function(phase, name):
    found, num_functions = noticed(phase, 0, 1, *OPTIONS[name])
    assert found == []
    assert num_functions > 300
