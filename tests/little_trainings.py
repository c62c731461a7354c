"""Small real trainings, watched step by step, that differ in one thing: shared by the tests of what reads runs."""

import torch
from torch import nn

import vario

QUANTITIES = ["gradient", "weight", "activation", "distribution"]


class Net(nn.Module):
    def __init__(self, width=16, depth=3):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def train(
    path,
    steps=90,
    seed=0,
    batches=0,
    order=None,
    fault=None,
    fault_step=60,
    lr=0.01,
    wrap=None,
    nan_step=None,
    **options,
):
    """Train and watch; `order` permutes rows of batches: that changes rounding alone. `fault(model)` strikes once."""
    torch.manual_seed(seed)
    model = Net() if wrap is None else wrap(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    teacher = torch.randn(8, 1, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(1000 + batches)
    options = {"quantities": QUANTITIES, "every": 1, "strict": True, **options}
    with vario.watch(model, optimizer, directory=str(path.parent), name=path.name, **options) as monitor:
        for step in range(steps):
            x = torch.randn(64, 8, generator=generator)
            y = (x @ teacher).tanh()
            if order is not None:
                rows = torch.randperm(64, generator=torch.Generator().manual_seed(order + step))
                x, y = x[rows], y[rows]
            if fault is not None and step == fault_step:
                with torch.no_grad():
                    fault(model)
            if step == nan_step:
                x = x * float("nan")
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    return path


def scale_a_weight(model):
    """One matrix in the middle is suddenly a fifth larger."""
    net = getattr(model, "module", model)
    net.blocks[1][0].weight.mul_(1.2)


def break_a_weight(model):
    net = getattr(model, "module", model)
    net.blocks[1][0].weight[3, 3] = 1e4


def train_with_drop(path):
    """A training in which the gradient of one matrix becomes a thousandth."""

    def shrink(model):
        model.blocks[1][0].weight.register_hook(lambda gradient: gradient * 1e-3)

    return train(path, steps=80, lr=1e-4, fault=shrink, quantities=["gradient"], rules=["grad_spike"])


def regress(path, steps=110, before=None, wanted=None, **options):
    """A small regression with SGD; `before(step, optimizer)` strikes, `wanted(step, y)` changes what is right."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    teacher = torch.randn(8, 1)
    with vario.watch(model, optimizer, directory=str(path.parent), name=path.name, every=1, **options) as monitor:
        for step in range(steps):
            x = torch.randn(64, 8)
            y = (x @ teacher).tanh()
            if before is not None:
                x = before(step, optimizer, x)
            if wanted is not None:
                y = wanted(step, y)
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    return vario.open_run(path)
