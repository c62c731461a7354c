"""Models that nobody calls as a whole, a ModuleDict for example: their parts tell where a pass begins."""

import numpy as np
import pytest
import torch
from torch import nn

import vario

STEPS, PASSES = 5, 2


class Callable(nn.Module):
    """Could be called as a whole."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return forward(self, x)


class Container(nn.Module):
    """Cannot."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8)])
        self.head = nn.Linear(8, 1)


def forward(model, x):
    for part in model.parts:
        x = part(x).tanh()
    return model.head(x)


@pytest.mark.parametrize("kind", [Container, Callable])
def test_each_pass_of_a_step_has_its_own_activations(tmp_path, kind):
    torch.manual_seed(0)
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.Generator().manual_seed(1)
    expected, losses = [], []
    options = {"quantities": ["activation", "gradient"], "every": 1, "directory": str(tmp_path), "name": "run"}
    monitor = vario.watch(model, optimizer, strict=True, **options)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(PASSES):
            output = forward(model, torch.randn(16, 4, generator=batches))
            expected.append(float(output.detach().double().norm()))
            output.square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            forward(model, torch.randn(2, 4))  # an evaluation is no pass
        losses.append(expected[-1])
        monitor.log(loss=losses[-1])
    monitor.close()
    run = vario.open_run(tmp_path / "run")
    found = run.series("head:output", "activation", "norm", micro_steps=True)
    # That a model which could be called is not shows with its first update: until then all is one pass.
    later = found.steps > 0 if kind is Callable else found.steps >= 0
    known = np.repeat(np.arange(STEPS), PASSES)[-int(later.sum()) :]
    assert later.sum() >= (STEPS - 1) * PASSES
    np.testing.assert_array_equal(found.steps[later], known)
    np.testing.assert_array_equal(found.micro_steps[later], np.tile(np.arange(PASSES), STEPS)[-len(known) :])
    np.testing.assert_allclose(found.values[later], expected[-len(known) :], rtol=1e-6)
    np.testing.assert_array_equal(run.steps("activation"), np.arange(STEPS))
    np.testing.assert_allclose(run.series("loss", "scalar").values, losses)


def test_a_part_that_begins_passes_is_recorded_after_steps_that_were_not(tmp_path):
    """Within a budget most steps record no activations: those that do again are whole."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"body": nn.Sequential(nn.Linear(4, 24), nn.Tanh(), nn.Linear(24, 3))})
    model.register_parameter("logs", nn.Parameter(torch.tensor([0.0, 0.0, -1.0])))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    x, y = torch.randn(80, 4), torch.randn(80, 1)
    with vario.watch(model, optimizer, directory=str(tmp_path), name="run", strict=True, overhead=0.01) as monitor:
        for _ in range(200):
            place = model["body"](x)
            width, size, noise = model.logs.exp()
            near = size * (-torch.cdist(place, place).square() / width).exp() + (noise + 1e-3) * torch.eye(80)
            root = torch.linalg.cholesky(near)
            loss = torch.linalg.solve_triangular(root, y, upper=False).square().mean() + root.diagonal().log().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run = vario.open_run(monitor.path)
    assert not run.parts_off
    assert len(run.steps("activation")) > 1
