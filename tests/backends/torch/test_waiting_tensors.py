"""Tensors that wait for the end of their pass give the same rows, in the same order, as those reduced at once."""

import numpy as np
import pytest
import torch
from torch import nn

from vario.backends.torch.modules.pass_plans import MOST_KEPT, GradientNames, PassPlans
from vario.backends.torch.reduce import steady_tensors
from watching import records, watch

STEPS = 8


class Wide(nn.Module):
    """Residual blocks whose middle layer is wider: its tensors are the ones too large to wait."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 8)) for _ in range(3)
        )
        self.identity = nn.Identity()
        self.head = nn.Linear(8, 2)

    def forward(self, x, side=None):
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.identity(x)) if side is None else self.head(x + side)


def recorded(monkeypatch, most_bytes, passes):
    with monkeypatch.context() as patch:
        patch.setattr(steady_tensors.room, "of_one", most_bytes)
        torch.manual_seed(0)
        model = Wide()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        monitor = watch(model, optimizer, ["activation", "activation_gradient"])
        for step in range(STEPS):
            for at in range(passes):
                inputs = torch.randn(4, 8, generator=torch.Generator().manual_seed(10 * step + at))
                model(inputs).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.wait()  # so that what is steady is known in the next step
        monitor.close()
    return records(monitor)


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("most_bytes", [4 * 8 * 4, 1 << 20])
def test_waiting_changes_neither_rows_nor_their_order(monkeypatch, most_bytes, passes):
    plain, waiting = (recorded(monkeypatch, most, passes) for most in (0, most_bytes))
    assert len(plain) == len(waiting) == STEPS
    for one, other in zip(plain, waiting, strict=True):
        assert len(one.frames) == len(other.frames) == 2 * passes
        for own, its in zip(one.frames, other.frames, strict=True):
            assert (own.quantity, own.micro_step) == (its.quantity, its.micro_step)
            tables = [
                {target: (at, row) for target, row, at in zip(f.targets, f.summaries, f.order, strict=True)}
                for f in (own, its)
            ]
            assert set(tables[0]) == set(tables[1])
            for target, (_, row) in tables[0].items():
                torch.testing.assert_close(torch.tensor(tables[1][target][1]), torch.tensor(row), rtol=0, atol=0)
            by_place = [sorted(table, key=lambda target, table=table: table[target][0]) for table in tables]
            if own.quantity == "activation":
                assert by_place[0] == by_place[1]
            else:  # a tensor's own targets come in the order in which they were seen
                first = {target: at for at, target in enumerate(by_place[0])}
                ranks = [first[target] for target in by_place[1]]
                assert sum(abs(rank - at) > 2 for at, rank in enumerate(ranks)) == 0


def test_what_autograd_keeps_anyway_is_not_counted_as_memory_of_ours():
    linear, inputs = nn.Linear(4, 4), torch.randn(2, 4)
    hidden = linear(inputs)
    activated = torch.nn.functional.gelu(hidden)
    shares = torch.softmax(linear(inputs), -1)
    dropped = linear(inputs)
    some = torch.nn.functional.dropout(dropped)
    assert activated.requires_grad
    assert some.requires_grad
    assert steady_tensors.is_kept_anyway(hidden)  # gelu needs its input in backward
    assert steady_tensors.is_kept_anyway(shares)  # and softmax its output
    assert not steady_tensors.is_kept_anyway(dropped)
    with torch.no_grad():
        assert not steady_tensors.is_kept_anyway(linear(inputs))
    found = []
    torch.vmap(lambda row: found.append(steady_tensors.is_kept_anyway(linear(row))) or row)(inputs)
    assert found == [False]


@pytest.mark.parametrize("most_bytes", [64, 1 << 20])
def test_tensors_that_only_wait_are_looked_at_before_they_keep_much_memory(monkeypatch, most_bytes):
    monkeypatch.setattr(steady_tensors.room, "of_values", most_bytes)
    plain, waiting = recorded(monkeypatch, 0, 1), recorded(monkeypatch, 1 << 20, 1)
    for one, other in zip(plain, waiting, strict=True):
        for own, its in zip(one.frames, other.frames, strict=True):
            order = [own.targets.index(target) for target in its.targets]
            np.testing.assert_array_equal(its.summaries, own.summaries[order])


def test_a_plan_is_made_anew_when_other_tensors_are_shared():
    plans = PassPlans()
    one, two = object(), object()
    first = plans.plan(("a", "b", "c"), [one, one, two])
    assert first.names == (("a", "b"), ("c",))
    assert first.tensors == (0, 0, 1)
    assert plans.plan(("a", "b", "c"), [two, two, one]) is first
    other = plans.plan(("a", "b", "c"), [one, two, two])
    assert other.names == (("a",), ("b", "c"))
    assert first.are_alike((True, True, False))
    assert not first.are_alike((True, False, False))


def test_a_target_that_occurs_twice_is_named_once_for_each_tensor():
    one, two = object(), object()
    plan = PassPlans().plan(("a", "a", "b"), [one, two, one])
    assert plan.names == (("a", "b"), ("a",))
    assert plan.tensors == (0, 1, 0)


def test_only_so_many_plans_are_kept():
    plans, names = PassPlans(), GradientNames()
    for at in range(3 * MOST_KEPT):
        plans.plan((f"target {at}",), [object()])
        assert names.of(((f"target {at}", "same"), ("other",))) == ((f"target {at}", "same", "other"), (0, 0, 1))
    assert len(plans._known) <= MOST_KEPT
    assert len(names._known) <= MOST_KEPT
