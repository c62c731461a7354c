"""Attention, experts and units on a CUDA device: the numbers of the CPU, the same bits of training, and no waiting."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from models import batch
from watching import check_same, rows, watch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode"),
]


class Layer(nn.Module):
    """Attention with a mask, units of which some are dead, and a router."""

    top_k = 2

    def __init__(self, choices):
        super().__init__()
        self.choices = choices
        self.qkv = nn.Linear(16, 48)
        self.up = nn.Linear(16, 32)
        self.act = nn.ReLU()
        self.down = nn.Linear(32, 16)
        self.router = Router(choices)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        with torch.no_grad():
            self.up.bias[:9] = -20.0

    def forward(self, x, mask):
        query, key, value = (part.transpose(1, 2) for part in self.qkv(x).unflatten(-1, (3, 4, 4)).unbind(2))
        x = x + nn.functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2).flatten(2)
        x = x + self.down(self.act(self.up(x)))
        return x + sum(expert(x) for expert in self.experts) * self.router(x)[0].mean()


class Router(nn.Linear):
    def __init__(self, choices):
        super().__init__(16, 6)
        self.choices = choices

    def forward(self, x):
        logits = super().forward(x)
        return (logits, logits.topk(2).indices) if self.choices else (logits,)


def trained(device, watched, choices=True, waiting="default"):
    torch.manual_seed(0)
    model = Layer(choices).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [batch(step, (9, 70, 16)).to(device) for step in range(3)]
    mask = (batch(7, (9, 1, 70, 70)) > 0).to(device)
    monitor = watch(model, optimizer, ["attention", "unit", "expert"]) if watched else None
    losses = []
    with sdpa_kernel(SDPBackend.MATH):
        for step, inputs in enumerate(batches):
            torch.cuda.set_sync_debug_mode(waiting if step else "default")
            loss = model(inputs, mask).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    torch.cuda.set_sync_debug_mode("default")
    if monitor is not None:
        monitor.close()
    return [loss.item() for loss in losses], monitor


@pytest.mark.parametrize("choices", [True, False])
def test_rows_are_those_of_the_cpu_and_nothing_waits_for_the_device(choices):
    _, expected = trained("cpu", True, choices)
    _, monitor = trained("cuda", True, choices, waiting="error")
    assert len(rows(monitor)) == 3 * (4 + 1 + choices + 5)  # only choices say how many tokens were dropped
    check_same(rows(monitor), rows(expected), rtol=2e-3)


def test_losses_are_the_same_bits():
    assert trained("cuda", True)[0] == trained("cuda", False)[0]


def test_algorithms_that_have_to_be_deterministic_are(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        _, monitor = trained("cuda", True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(rows(monitor)) == 3 * (4 + 2 + 5)
