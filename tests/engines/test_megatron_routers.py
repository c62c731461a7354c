"""Megatron-core's own router, which drops tokens above its capacity: load, entropy, logits and what was dropped."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from oracle import HERE
from test_megatron_engines import environment

from starting import run_warm
from vario.core.records import COUNT, MAX, SUM, SUM_SQUARES

pytestmark = pytest.mark.slow

EXPERTS, TOP_K, STEPS, MICRO_STEPS = 4, 2, 3, 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    place = tmp_path_factory.mktemp("routers")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    words = [Path(HERE) / "megatron_routers.py", place / "found.pt"]
    done = run_warm(words, cwd=place, env={**os.environ, **environment(), **alone})
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(place / "found.pt")


def test_its_load_and_what_it_dropped_are_those_of_its_own_map(trained):
    kept, rows = list(trained["kept"]), trained["rows"]
    shares = []
    for step in range(STEPS):
        for micro_step in range(MICRO_STEPS):
            for _ in range(2):
                router, _, _, chosen = kept.pop(0)
                counts = chosen.numpy().sum(0)
                row = rows[step, micro_step, f"{router}:load"]
                assert row[MAX] == pytest.approx(counts.max() / counts.mean())
                each = [rows[step, micro_step, f"{router}:load.{expert}"][SUM] for expert in range(EXPERTS)]
                np.testing.assert_allclose(each, counts / counts.mean(), rtol=1e-6)
                dropped = 1 - counts.sum() / (len(chosen) * TOP_K)
                assert rows[step, micro_step, f"{router}:dropped"][SUM] == pytest.approx(dropped, abs=1e-6)
                shares.append(dropped)
    assert not kept
    assert max(shares) > 0.1  # the capacity is three quarters of what is asked for


def test_its_logits_are_its_inputs_times_its_weight(trained):
    rows = trained["rows"]
    for place, (router, inputs, weight, _) in enumerate(trained["kept"]):
        logits = inputs.double().numpy().reshape(-1, inputs.shape[-1]) @ weight.double().numpy().T
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        step, micro_step = divmod(place // 2, MICRO_STEPS)
        found = {what: rows[step, micro_step, f"{router}:{what}"] for what in ("entropy", "logit")}
        assert found["logit"][COUNT] == logits.size
        assert found["logit"][SUM_SQUARES] == pytest.approx((logits**2).sum(), rel=1e-5)
        assert found["logit"][MAX] == pytest.approx(logits.max(), rel=1e-5)
        entropy = -(p * np.log(p)).sum(-1)
        assert found["entropy"][SUM] == pytest.approx(entropy.sum(), rel=1e-5)
