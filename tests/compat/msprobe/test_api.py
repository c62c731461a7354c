"""`format: api` beside the last msprobe release whose documents and code agree on it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import training

CONFIG = {
    "targets": {},
    "format": "api",
    "wg_distribution": True,
    "xy_distribution": True,
    "squash_name": False,
    "ops": ["norm", "min", "max", "mean"],
}
JOB = {"config": CONFIG, "accumulate": 2, "asks": True, "clip": 0.01}


@pytest.fixture(scope="module")
def answers(peer, tmp_path_factory):
    base = tmp_path_factory.mktemp("api")
    (base / "jobs.json").write_text(json.dumps([{**JOB, "monitor": "msprobe", "out": str(base / "msprobe")}]))
    command = [sys.executable, training.__file__, str(base / "jobs.json")]
    done = subprocess.run(command, env=peer("1.3.0"), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    error = base / "msprobe.error"
    assert not error.exists(), error.read_text()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    training.train({**JOB, "monitor": "vario", "out": str(base / "vario")})
    torch.set_num_threads(num_threads)
    return [json.loads(Path(f"{base / who}.asked.json").read_text()) for who in ("msprobe", "vario")]


@pytest.mark.parametrize("which", ["reduced", "unreduced", "actv", "actv_grad"])
def test_the_same_answers_between_backward_and_update(answers, which):
    number = ["reduced", "unreduced", "actv", "actv_grad"].index(which)
    for theirs, ours in zip(*answers, strict=True):
        expected = {tag: found for tag, found in theirs[number].items() if found["norm"] == found["norm"]}
        found = ours[number]
        if which == "actv_grad":
            # 1.3.0 gives the gradients of activations the tags of the activations.
            expected = {tag.replace("/actv", "/actv_grad"): values for tag, values in expected.items()}
        assert set(found) == set(expected)
        for tag, values in expected.items():
            assert found[tag] == pytest.approx(values, rel=1e-4, abs=1e-7), tag
