import numpy as np
import pytest
import torch

import vario
from vario.runs.views.tensors.noise_scale import noise_scale, read_noise_scale

MEAN, SPREAD, WIDTH = 0.3, 1.0, 20
TRUE_SCALE = SPREAD**2 / MEAN**2
"""Of rows whose gradients are normal, with this mean and spread in each element."""


def squares_of(generator, num_steps, num, rows):
    """Squared norms of sums of micro-batch gradients."""
    each = MEAN + SPREAD / np.sqrt(rows) * generator.standard_normal((num_steps, num, WIDTH))
    return (each.cumsum(axis=1) ** 2).sum(axis=2)[:, [0, -1]]


def test_it_is_the_trace_of_the_covariance_over_the_squared_gradient():
    found = noise_scale(squares_of(np.random.default_rng(0), 4000, 4, 8), 4, rows=8)
    assert found.scale == pytest.approx(TRUE_SCALE, rel=0.05)
    assert found.batch == 32


def test_its_error_is_how_far_estimates_scatter():
    generator = np.random.default_rng(1)
    found = [noise_scale(squares_of(generator, 100, 4, 8), 4, rows=8) for _ in range(300)]
    scatter = np.std([one.scale for one in found])
    assert np.median([one.error for one in found]) == pytest.approx(scatter, rel=0.2)
    is_near = [abs(one.scale - TRUE_SCALE) < 2 * one.error for one in found]
    assert np.mean(is_near) > 0.9


def test_where_noise_hides_the_gradient_there_is_no_number():
    generator = np.random.default_rng(2)
    each = generator.standard_normal((50, 4, WIDTH))
    found = noise_scale((each.cumsum(axis=1) ** 2).sum(axis=2)[:, [0, -1]], 4, rows=8)
    assert found.scale is None
    assert "noise hides the gradient" in found.text


def test_few_steps_and_single_passes_tell_nothing():
    assert noise_scale(np.ones((10, 2)), 4) is None
    assert noise_scale(np.ones((100, 2)), 1) is None


def train(path, num=4, steps=200, second=False):
    """The gradient of a row is the row itself."""
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=str(path), rules=False) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(num):
                (model(MEAN + SPREAD * torch.randn(8, WIDTH)).mean() / num).backward()
            optimizer.step()
    return vario.open_run(monitor.path)


def test_a_training_with_accumulation_tells_it(tmp_path):
    found = read_noise_scale(train(tmp_path))
    assert (found.unit, found.batch, found.micro_steps) == ("samples", 32, 4)
    assert abs(found.scale - TRUE_SCALE) < 4 * found.error
    assert found.error < TRUE_SCALE


def test_a_training_without_accumulation_does_not(tmp_path):
    assert read_noise_scale(train(tmp_path, num=1, steps=30)) is None


def test_passes_through_different_parts_are_no_accumulation(tmp_path):
    model = torch.nn.ModuleList([torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)])
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.01) for part in model]
    with vario.watch(model, optimizers, directory=str(tmp_path), rules=False) as monitor:
        for _ in range(30):
            for part, optimizer in zip(model, optimizers, strict=True):
                optimizer.zero_grad()
                part(torch.randn(8, 4)).mean().backward()
                optimizer.step()
    assert read_noise_scale(vario.open_run(monitor.path)) is None
