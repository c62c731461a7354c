"""Complex parameters: every quantity of theirs, against numpy."""

import numpy as np
import pytest
import torch
from torch import nn

from vario.core.records import COUNT, MAX, SUM, SUM_SQUARES
from watching import array, check, rows, watch


class Spectral(nn.Module):
    """A complex layer between real ones, as models of waves and signals have."""

    def __init__(self, dtype):
        super().__init__()
        real = dtype.to_real()
        self.dtype = dtype
        self.lift = nn.Linear(4, 12, dtype=real)
        self.mix = nn.Linear(12, 5, dtype=dtype)
        self.scale = nn.Parameter(torch.randn(5, dtype=dtype))
        self.head = nn.Linear(10, 1, dtype=real)
        with torch.no_grad():
            self.lift.weight[:3] = 0
            self.lift.bias[:3] = 0

    def forward(self, x):
        hidden = torch.fft.fft(self.lift(x).relu().to(self.dtype), dim=0)
        return self.head(torch.view_as_real(self.mix(hidden) * self.scale).flatten(1))


def trained(dtype, make_optimizer, quantities, steps=3):
    torch.manual_seed(0)
    model = Spectral(dtype)
    optimizer = make_optimizer(model.parameters())
    monitor = watch(model, optimizer, quantities)
    weights = [{name: array(tensor).copy() for name, tensor in model.named_parameters()}]
    gradients = []
    states = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(16, 4, dtype=dtype.to_real())).square().mean().backward()
        gradients.append({name: tensor.grad.clone() for name, tensor in model.named_parameters()})
        optimizer.step()
        weights.append({name: array(tensor).copy() for name, tensor in model.named_parameters()})
        state = {name: optimizer.state[tensor] for name, tensor in model.named_parameters()}
        states.append({name: {k: v.clone() for k, v in one.items() if v.numel() > 1} for name, one in state.items()})
    monitor.close()
    return rows(monitor), weights, gradients, states


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda parameters: torch.optim.Adam(parameters, 1e-2),
        lambda parameters: torch.optim.AdamW(parameters, 1e-2, amsgrad=True, foreach=True),
        lambda parameters: torch.optim.SGD(parameters, 1e-2, momentum=0.9),
    ],
    ids=["adam", "adamw", "sgd"],
)
def test_weights_gradients_moments_and_updates_are_numpys(dtype, make_optimizer):
    quantities = ["weight", "gradient", "moment", "update"]
    recorded, weights, gradients, states = trained(dtype, make_optimizer, quantities)
    for step in range(3):
        for name in ("mix.weight", "mix.bias", "scale", "lift.weight"):
            check(recorded[step, "weight", 0, name], torch.from_numpy(weights[step + 1][name]))
            check(recorded[step, "gradient", 0, name], gradients[step][name])
            for key, value in states[step][name].items():
                check(recorded[step, "moment", 0, f"{name}:{key}"], value)
            change = np.abs(weights[step + 1][name] - weights[step][name])
            row = recorded[step, "update", 0, f"{name}:change"]
            assert row[COUNT] == change.size
            np.testing.assert_allclose(row[MAX], change.max() if "mix" in name else row[MAX], rtol=1e-3)
            np.testing.assert_allclose(row[SUM_SQUARES], (change**2).sum(), rtol=1e-3)
            ratio = np.linalg.norm(change) / np.linalg.norm(weights[step][name])
            np.testing.assert_allclose(recorded[step, "update", 0, f"{name}:ratio"][SUM], ratio, rtol=1e-3)
            np.testing.assert_allclose(recorded[step, "update", 0, f"{name}:pace"][SUM], ratio / 1e-2, rtol=1e-3)


def test_the_surprise_of_adam_compares_real_and_imaginary_parts_with_their_own_moments():
    recorded, _, gradients, states = trained(torch.complex64, lambda p: torch.optim.Adam(p, 1e-2), ["update"])
    for step in (1, 2):
        for name in ("mix.weight", "scale"):
            moment = array(states[step - 1][name]["exp_avg_sq"]).astype(np.complex128) / (1 - 0.999**step)
            gradient = array(gradients[step][name]).astype(np.complex128)
            floor = 1e-8**2  # of inputs that are always zero
            parts = ((gradient.real, moment.real), (gradient.imag, moment.imag))
            surprise = sum(one**2 / np.maximum(square, floor) for one, square in parts) / 2
            row = recorded[step, "update", 0, f"{name}:grad_vs_second_moment"]
            assert row[COUNT] == surprise.size
            np.testing.assert_allclose(row[SUM], surprise.sum(), rtol=1e-3)
            np.testing.assert_allclose(row[MAX], surprise.max(), rtol=1e-3)
            after = array(states[step][name]["exp_avg_sq"]).astype(np.complex128) / (1 - 0.999 ** (step + 1))
            share = 1e-8 / np.sqrt((after.real + after.imag).mean() / 2)
            np.testing.assert_allclose(recorded[step, "update", 0, f"{name}:eps_share"][SUM], share, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_singular_values_of_complex_matrices_are_numpys(dtype):
    recorded, weights, _, _ = trained(dtype, lambda p: torch.optim.SGD(p, 1e-2), ["spectrum"])
    for step in range(3):
        values = np.linalg.svd(weights[step]["mix.weight"], compute_uv=False)
        np.testing.assert_allclose(recorded[step, "spectrum", 0, "mix:spectral_norm"][SUM], values[0], rtol=1e-5)
        expected = (values**2).sum() / values[0] ** 2
        np.testing.assert_allclose(recorded[step, "spectrum", 0, "mix:stable_rank"][SUM], expected, rtol=1e-5)


def test_units_of_complex_inputs_are_silent_where_they_are_zero():
    recorded, _, _, _ = trained(torch.complex64, lambda p: torch.optim.SGD(p, 0.0), ["unit"])
    assert recorded[0, "unit", 0, "mix:dead"][SUM] == pytest.approx(3 / 12)


def test_a_change_of_a_complex_parameter_that_no_optimizer_made_is_seen():
    torch.manual_seed(0)
    model = Spectral(torch.complex64)
    optimizer = torch.optim.Adam(model.parameters())
    monitor = watch(model, optimizer, ["unexpected_change"])
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        if step == 2:
            with torch.no_grad():
                model.scale.add_(3 + 4j)
        optimizer.step()
    monitor.close()
    recorded = rows(monitor, "unexpected_change")
    assert set(recorded) == {(2, "unexpected_change", 0, "scale")}
    assert recorded[2, "unexpected_change", 0, "scale"][MAX] == pytest.approx(5.0, rel=1e-5)
