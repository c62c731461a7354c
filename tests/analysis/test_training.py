"""Looking at a loop by hand, and at the GPU."""

import math

import pytest
import torch

from models import Partial, Perceptron, batch
from vario.analysis.training import TrainingMonitor, get_gpu_memory_info
from vario.core.errors import ConfigError, ModelError


def test_the_monitor_looks_at_every_nth_step_and_remembers():
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainingMonitor(model, check_every=3)
    seen = []
    for step in range(7):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        expected = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        found = monitor.step(loss, learning_rate=0.1)
        if found is not None:
            seen.append(found.step)
            assert found.loss == loss.item()
            assert found.gradient_norm == pytest.approx(expected.item(), rel=1e-6)
        optimizer.step()
    assert seen == [3, 6]
    assert [entry.step for entry in monitor.history] == [3, 6]
    assert monitor.health.is_healthy
    assert math.isnan(TrainingMonitor(model, 1).step().loss)


def test_the_summary_says_what_trains():
    summary = TrainingMonitor(Partial()).get_model_summary()
    assert (summary["total_parameters"], summary["trainable_parameters"], summary["frozen_parameters"]) == (50, 30, 20)
    assert summary["trainable_ratio"] == 0.6
    assert summary["optimizer_gb"] == 2 * 30 * 2 / 2**30


@pytest.mark.parametrize("wrong", [0, -5, 1.5, True, "often"])
def test_an_interval_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="check_every: expected a whole number of at least 1"):
        TrainingMonitor(Perceptron(), check_every=wrong)


def test_what_is_no_model_is_refused_at_once():
    with pytest.raises(ModelError, match=r"expected a torch\.nn\.Module"):
        TrainingMonitor("model")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_its_memory_is_nothing():
    memory = get_gpu_memory_info()
    assert memory == {"used_gb": 0.0, "free_gb": 0.0, "total_gb": 0.0, "device": "no GPU is visible to torch"}
    assert f"{memory['used_gb']:.2f} GB of {memory['total_gb']:.2f} GB" == "0.00 GB of 0.00 GB"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_gpu_memory_is_the_drivers_so_that_other_processes_count():
    before = get_gpu_memory_info()
    block = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    after = get_gpu_memory_info()
    assert after["used_gb"] - before["used_gb"] == pytest.approx(1, abs=0.1)
    assert after["used_gb"] + after["free_gb"] == pytest.approx(after["total_gb"])
    assert after["used_gb"] > torch.cuda.memory_reserved() / 2**30, "the context is no tensor, and takes memory"
    del block
