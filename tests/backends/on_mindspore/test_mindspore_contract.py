"""What holds on every backend, in MindSpore's own environment."""

from pathlib import Path

import pytest

CONTRACT = Path(__file__).parents[2] / "contract"


@pytest.mark.slow
def test_the_contract_holds_for_mindspore(mindspore, tmp_path):
    options = ("-p", "no:cacheprovider", "-o", "filterwarnings=", "--basetemp", tmp_path / "runs", "-k", "mindspore")
    done = mindspore("-m", "pytest", *options, CONTRACT, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "[mindspore]" not in done.stdout  # only failures are named
