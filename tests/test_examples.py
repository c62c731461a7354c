import os
import subprocess
import sys
from pathlib import Path

import pytest

from starting import run_ranks, run_warm
from thorough import thorough

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
WARN_BY_THEMSELVES = {"lightning_trainer.py", "deepspeed_zero.py", "megatron_gpt.py"}
"""Examples whose trainer uses what torch has deprecated."""
RANKS = {"deepspeed_zero.py": 2, "ddp.py": 2, "fsdp.py": 2, "fsdp2.py": 2, "megatron_gpt.py": 2}
"""Examples that torchrun starts on so many ranks."""
ON_CPU = {"megatron_gpt.py": "megatron_on_cpu.py"}
"""Examples whose framework asks for GPUs, and what lets it go without."""
PEERS = Path(__file__).parents[1] / ".peers"
FIRST = ["plain_loop.py", "hf_trainer.py", "fsdp2.py", "msprobe_drop_in.py"]
"""Examples that `make test` runs; tests of each engine and trainer do what the others do."""
FRESH = ["plain_loop.py", "lightning_trainer.py"]
"""Examples in a process of their own: what is imported with all warnings as errors, and by whom, is as for users."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(path):
    assert len(path.read_text(encoding="utf8").splitlines()) < 60


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [path if path.name in FIRST else pytest.param(path, marks=thorough) for path in EXAMPLES],
    ids=lambda path: path.name,
)
def test_an_example_runs_and_leaves_a_run(path, tmp_path):
    warnings = "default" if path.name in WARN_BY_THEMSELVES else "error"
    words = ["-W", warnings]
    if path.name in ON_CPU:
        words.append(str(Path(__file__).parent / "engines" / ON_CPU[path.name]))
    words.append(str(path))
    if path.name in RANKS:
        environment = {**os.environ, "PYTHONPATH": str(PEERS / "engines"), "OMP_NUM_THREADS": "1"}
        result = run_ranks(words, RANKS[path.name], cwd=tmp_path, env=environment)
    elif path.name in FRESH:
        result = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True)
    else:
        result = run_warm(words, cwd=tmp_path, ready=["transformers.trainer"] if path.name.startswith("hf_") else [])
    assert result.returncode == 0, result.stderr
    assert len(list(tmp_path.glob("vario_runs/*/run.json"))) == 1
