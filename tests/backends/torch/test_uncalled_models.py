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
