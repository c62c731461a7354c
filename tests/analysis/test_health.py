"""Gradients in order and out of order, on real models after a real backward."""

import math

import pytest
import torch
from torch import nn

from models import Partial, Perceptron, batch
from vario.analysis.health import check_gradient_health
from vario.core.errors import ConfigError, ModelError


def backward(model, scale=1.0):
    (model(batch(0)).square().mean() * scale).backward()
    return model


def made():
    torch.manual_seed(0)
    return backward(Perceptron(dropout=0.0))


def test_healthy_gradients_are_healthy_and_their_numbers_are_torchs():
    model = made()
    health = check_gradient_health(model)
    assert health["healthy"] is True
    assert health["issues"] == []
    elements = torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double()
    stats = health["stats"]
    for key, expected in (
        ("min", elements.min()),
        ("max", elements.max()),
        ("mean", elements.mean()),
        ("std", elements.std(correction=0)),
        ("norm", elements.norm()),
    ):
        assert stats[key] == pytest.approx(expected.item(), rel=1e-6), key
    assert (stats["num_nan"], stats["num_inf"], stats["num_with_gradient"]) == (0, 0, 4)
    norms = {name: parameter.grad.norm().item() for name, parameter in model.named_parameters()}
    assert stats["largest"]["name"] == max(norms, key=norms.get)
    assert stats["thresholds"]["apply_to"].startswith("the norm of each parameter's gradient")


def test_a_nan_and_an_inf_are_found_by_name():
    model = made()
    model.up.weight.grad[1, 2] = math.nan
    model.down.bias.grad[0] = math.inf
    health = check_gradient_health(model)
    assert health["healthy"] is False
    assert health["issues"] == [
        "up.weight: 1 NaN in 32 elements of its gradient",
        "down.bias: 1 Inf in 3 elements of its gradient",
    ]
    assert (health["stats"]["num_nan"], health["stats"]["num_inf"]) == (1, 1)
    assert math.isnan(health["stats"]["norm"])
    assert math.isfinite(health["stats"]["largest"]["norm"])


def test_half_precision_norms_do_not_overflow():
    model = nn.Linear(1000, 1, bias=False).half()
    model.weight.grad = torch.full((1, 1000), 300.0, dtype=torch.float16)
    assert model.weight.grad.square().sum().isinf(), "as the gradient's own dtype would have it"
    health = check_gradient_health(model, warn_threshold=1e4, error_threshold=1e5)
    assert health["healthy"]
    assert health["issues"] == []
    assert health["stats"]["norm"] == pytest.approx(300 * math.sqrt(1000))


def test_a_large_norm_warns_and_a_larger_one_is_an_error():
    model = nn.Linear(2, 2)
    model.weight.grad = torch.full((2, 2), 1.0)
    model.bias.grad = torch.full((2,), 100.0)
    health = check_gradient_health(model)
    assert not health["healthy"]
    assert health["issues"] == [
        "bias: gradient norm 141.4 is above error_threshold 10",
        "weight: gradient norm 2 is above warn_threshold 1",
    ]
    model.bias.grad.zero_()
    health = check_gradient_health(model)
    assert health["healthy"], "a warning alone is no illness"
    assert health["issues"] == ["weight: gradient norm 2 is above warn_threshold 1"]


def test_zero_missing_and_frozen_are_told_apart_and_none_is_an_illness():
    model = nn.ModuleDict({"body": Partial(), "expert": nn.Linear(4, 3)})
    routed = model["body"](batch(0)) + model["expert"](batch(0)) * 0.0
    routed.square().mean().backward()
    health = check_gradient_health(model)
    assert health["healthy"]
    assert health["issues"] == []
    assert health["stats"]["zero"] == ["expert.weight", "expert.bias"]
    assert health["stats"]["missing"] == ["body.spare.weight", "body.spare.bias"]
    assert health["stats"]["num_frozen"] == 2


def test_a_look_at_the_wrong_moment_says_so():
    model = Perceptron()
    health = check_gradient_health(model)
    assert not health["healthy"]
    assert health["issues"] == ["no parameter has a gradient: check after backward() and before zero_grad()"]
    backward(model, scale=0.0)
    health = check_gradient_health(model)
    assert not health["healthy"]
    assert health["issues"] == ["all 4 gradients are zero: the model does not learn"]


def test_gradients_of_one_element_have_no_spread():
    model = nn.Linear(1, 1, bias=False)
    model.weight.grad = torch.tensor([[0.5]])
    stats = check_gradient_health(model)["stats"]
    assert (stats["mean"], stats["std"], stats["norm"]) == (0.5, 0.0, 0.5)


def test_sparse_gradients_are_read():
    model = nn.Embedding(100, 4, sparse=True)
    model(torch.tensor([3, 3, 5])).sum().backward()
    stats = check_gradient_health(model, 10, 20)["stats"]
    assert (stats["max"], stats["num_zero"], stats["unread"]) == (2.0, 98 * 4, [])


def test_looking_changes_no_gradient():
    model = made()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    check_gradient_health(model)
    assert all(torch.equal(kept, parameter.grad) for kept, parameter in zip(before, model.parameters(), strict=True))


def test_thresholds_that_judge_nothing_are_refused():
    model = made()
    with pytest.raises(ConfigError, match=r"warn_threshold: 10 is above error_threshold, 1. Did you swap them\?"):
        check_gradient_health(model, 10, 1)
    for wrong in (0, -1, math.nan, "1"):
        with pytest.raises(ConfigError, match="expected a number above 0"):
            check_gradient_health(model, wrong)
    with pytest.raises(ModelError, match=r"expected a torch.nn.Module, got list"):
        check_gradient_health([model])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")  # torch's remark on itself
def test_on_a_gpu_the_numbers_are_the_same_and_come_in_one_transfer():
    cpu, gpu = made(), made().cuda()
    for here, there in zip(cpu.parameters(), gpu.parameters(), strict=True):
        there.grad = here.grad.cuda()
    check_gradient_health(gpu)  # compiles the kernels
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        found = check_gradient_health(gpu)
    copies = [event for event in profile.events() if "DtoH" in event.name]
    assert len(copies) <= 1  # none where kernels write to the host's memory themselves
    expected = check_gradient_health(cpu)
    for key in ("min", "max", "mean", "std", "norm"):
        assert found["stats"][key] == pytest.approx(expected["stats"][key], rel=1e-5), key
    gpu.up.weight.grad[0, 0] = math.nan
    assert check_gradient_health(gpu)["issues"] == ["up.weight: 1 NaN in 32 elements of its gradient"]
