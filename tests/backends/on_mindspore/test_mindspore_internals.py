"""Attention, singular values and experts inside MindSpore cells (`internals_trainings.py`), beside torch and NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vario
from vario.backends.torch.modules.attention import attention_rows

HERE = Path(__file__).parent

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(mindspore, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inside")
    mindspore(HERE / "internals_trainings.py", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def arrays(trained):
    with np.load(trained / "inside.npz") as found:
        return dict(found)


def rows(run, quantity, step=0):
    return {row["target"]: row for row in run.frame(step, quantity).to_pylist()}


def test_losses_are_bit_identical_watched_and_not(trained):
    found = json.loads((trained / "inside.json").read_text())
    assert found["watched"] == found["alone"]


def test_attention_of_a_named_cell_is_that_of_torch(trained, arrays):
    query, key = (torch.from_numpy(arrays[name]) for name in ("query", "key"))
    expected = attention_rows(query, key, "s,b,h,d", causal=True, by_head=True)
    assert {"head_entropy.1", "max_logit.1"} <= set(expected)
    found = rows(vario.open_run(trained / "named"), "attention")
    assert set(found) == {f"core_attention:{what}" for what in expected}
    for what, tensor in expected.items():
        row = found[f"core_attention:{what}"]
        assert row["count"] == tensor.numel()
        assert row["sum"] == pytest.approx(float(tensor.double().sum()), rel=1e-5)
        assert row["max"] == pytest.approx(float(tensor.max()), rel=1e-5)


def test_attention_of_mindspores_own_cells_is_found(trained):
    found = rows(vario.open_run(trained / "found"), "attention")
    by_head = {f"{what}.{head}" for what in ("head_entropy", "max_logit") for head in range(2)}
    assert set(found) == {
        f"attention:{what}" for what in ("entropy", "softmax_max", "max_logit", "head_entropy", *by_head)
    }
    largest = [found[f"attention:max_logit.{head}"]["max"] for head in range(2)]
    assert max(largest) == found["attention:max_logit"]["max"]
    assert found["attention:entropy"]["count"] == 3 * 2 * 5
    assert 0 < found["attention:entropy"]["max"] <= np.log(5) * (1 + 1e-6)


def test_singular_values_are_those_of_numpy(trained, arrays):
    found = rows(vario.open_run(trained / "found"), "spectrum")
    names = ["attention.out_proj", "qkv", "mixture.gate", *(f"mixture.experts.{at}" for at in range(4))]
    assert {target.rpartition(":")[0] for target in found} == set(names)
    for name in names:
        values = np.linalg.svd(arrays[f"weight/{name}.weight"].astype(np.float64))[1]
        assert found[f"{name}:spectral_norm"]["sum"] == pytest.approx(values[0], rel=1e-5)
        assert found[f"{name}:stable_rank"]["sum"] == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-5)


def test_the_load_of_experts_is_what_the_logits_choose(trained, arrays):
    found = rows(vario.open_run(trained / "found"), "expert")
    row = found["mixture.gate:load"]
    chosen = np.argsort(arrays["logits"].reshape(-1, 4), axis=1)[:, -2:]
    load = np.bincount(chosen.ravel(), minlength=4) / (chosen.size / 4)
    assert (row["count"], row["max"], row["min"]) == (4, pytest.approx(load.max()), pytest.approx(load.min()))
    assert [found[f"mixture.gate:load.{expert}"]["sum"] for expert in range(4)] == pytest.approx(load.tolist())


def test_the_state_monitor_of_mindspore_transformers_has_them(trained):
    text = (trained / "log.txt").read_text()
    assert "max_attention_logit" in text
    assert "weight_stable_rank" in text
    assert "not offered" not in text
