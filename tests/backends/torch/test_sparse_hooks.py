"""Hooks that are off their modules in steps that are not watched."""

import pytest
import torch
import torch._dynamo

import vario


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.act = torch.nn.ReLU()

    def forward(self, x):
        return self.act(self.inner(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return self.block(x)


@pytest.fixture(autouse=True)
def nothing_was_compiled():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def hooks_of(module):
    return [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]


def train(tmp_path, model, steps, call=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen = []
    with vario.watch(model, optimizer, directory=str(tmp_path), name="run", **options):
        for _ in range(steps):
            (model if call is None else call)(torch.randn(64, 4)).sum().backward()
            seen.append(len(hooks_of(model.block.inner)))
            optimizer.step()
            optimizer.zero_grad()
    return seen, vario.open_run(tmp_path / "run")


def test_modules_have_no_hooks_in_steps_that_are_not_watched(tmp_path):
    model = Net()
    quantities = ["activation", "activation_gradient", "unit"]
    seen, run = train(tmp_path, model, 13, quantities=quantities, every=5)
    # In the first three steps everything is there to be compiled in.
    assert [step for step, number in enumerate(seen) if number] == [0, 1, 2, 5, 10]
    assert hooks_of(model.block.inner) == hooks_of(model) == []
    for target in ("block.inner:input", "block.inner:output", "block:output", "root:input", "root:output"):
        assert run.series(target, "activation", "norm").steps.tolist() == [0, 5, 10]
    for target in ("block.inner:output", "block:output", "root:output"):
        assert run.series(target, "activation_gradient", "norm").steps.tolist() == [0, 5, 10]
    assert run.steps("unit").tolist() == [0, 5, 10]


def test_hooks_of_others_stay_where_they_are(tmp_path):
    model, calls = Net(), []
    model.block.inner.register_forward_pre_hook(lambda *_: calls.append("first"))
    model.block.inner.register_forward_pre_hook(lambda *_: calls.append("second"))
    train(tmp_path, model, 12, quantities=["activation"], every=5)
    assert calls == ["first", "second"] * 12
    assert len(hooks_of(model.block.inner)) == 2


def test_hooks_stay_where_graphs_are_compiled(tmp_path):
    model = Net()
    compiled = torch.compile(model, backend="eager")
    seen, run = train(tmp_path, model, 12, call=compiled, quantities=["activation"], every=5)
    assert min(seen) == max(seen) > 0
    assert run.steps("activation").tolist() == [0, 5, 10]
