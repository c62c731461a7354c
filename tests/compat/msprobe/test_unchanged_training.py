"""Training with everything on: the same weights bit by bit, whatever modules do with their inputs."""

import pytest
import torch
from plain_loop import watch
from torch import nn

EVERYTHING = {
    "wg_distribution": True,
    "xy_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "mg_direction": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": []},
}


class Around(nn.Module):
    """A layer before and one after what is tested."""

    def __init__(self, inner):
        super().__init__()
        self.before = nn.Linear(6, 6)
        self.inner = inner
        self.after = nn.Linear(6, 3)

    def forward(self, x):
        return self.after(self.inner(self.before(x)))


class Residual(nn.Module):
    """Uses its input inside one module several times, and outside of it: four gradients that autograd adds up."""

    def __init__(self):
        super().__init__()
        self.norm = Norm()

    def forward(self, x):
        for _ in range(3):
            x = x + self.norm(x).tanh() * x.sigmoid()
        return x


class Norm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) + x.exp()


class WritesIntoItsInput(nn.Module):
    def forward(self, x):
        x.add_(1).mul_(2)
        return nn.functional.relu(x, inplace=True)


class DetachesItsInput(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        x.detach_()
        return self.scale * x


class TwoResultsInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2), x.sum()

    @staticmethod
    def backward(ctx, of_x, of_sum):
        return 2 * (of_x + of_sum)


class CallsAFunctionThatWrites(nn.Module):
    def forward(self, x):
        doubled, total = TwoResultsInPlace.apply(x)
        return doubled + total


class WantsAParameter(nn.Module):
    def forward(self, weight):
        assert isinstance(weight, nn.Parameter)
        return weight.exp()


class GivesAParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6, 6))
        self.makes_it_positive = WantsAParameter()

    def forward(self, x):
        return x @ self.makes_it_positive(self.weight) + self.weight.sum()


class Multiplies(nn.Module):
    def forward(self, matrix, x):
        return torch.sparse.mm(matrix, x)


class Graph(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.edges = nn.Parameter(torch.ones(3))
        self.layout = layout
        self.product = Multiplies()

    def forward(self, x):
        if self.layout == "coo":
            matrix = torch.sparse_coo_tensor(
                torch.tensor([[0, 1, 2], [1, 2, 3]]), self.edges, (4, 4), check_invariants=True
            )
        else:
            rows, columns = torch.tensor([0, 1, 2, 3, 3]), torch.tensor([1, 2, 3])
            matrix = torch.sparse_csr_tensor(rows, columns, self.edges, (4, 4), check_invariants=True)
        return self.product(matrix, x)


class Nested(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.layout = layout
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        ragged = torch.nested.as_nested_tensor([x[:1], x[1:]], layout=self.layout)
        return torch.cat([*self.linear(self.linear(ragged)).unbind()])


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6, dtype=torch.complex64)

    def forward(self, x):
        return self.linear(x.to(torch.complex64)).abs()


def train(model, monitor_with=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = None if monitor_with is None else monitor_with(model, optimizer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        model(torch.randn(4, 6, generator=generator)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize(
    "make",
    [
        Residual,
        WritesIntoItsInput,
        DetachesItsInput,
        CallsAFunctionThatWrites,
        GivesAParameter,
        lambda: Graph("coo"),
        lambda: Graph("csr"),
        lambda: Nested(torch.jagged),
        lambda: Nested(torch.strided),
        Complex,
    ],
    ids=["residual", "in place", "detach_", "function", "parameter", "coo", "csr", "jagged", "nested", "complex"],
)
def test_weights_are_the_same_bit_by_bit(tmp_path, monkeypatch, caplog, make):
    out = tmp_path / "out"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(out))
    found = []
    for monitor_with in (None, lambda model, optimizer: watch(out, EVERYTHING, model, optimizer)):
        torch.manual_seed(0)
        found.append(train(Around(make()), monitor_with))
    for plain, watched in zip(*found, strict=True):
        assert torch.equal(plain, watched)
    assert "failed and is switched off" not in caplog.text
    assert list(out.rglob("actv_grad_2-2.csv"))


def test_a_leaf_given_by_the_caller_reaches_the_module_as_itself(tmp_path, monkeypatch):
    class LooksAtItsInput(nn.Module):
        def forward(self, x):
            seen.append(x)
            return x * 2

    seen = []
    out = tmp_path / "out"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(out))
    model = nn.Sequential(LooksAtItsInput(), nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, EVERYTHING, model, optimizer)
    leaf = torch.randn(4, 6, requires_grad=True)
    model(leaf).sum().backward()
    optimizer.step()
    monitor.close()
    assert seen[0] is leaf
