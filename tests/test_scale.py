"""Very many parameters, and very many steps: what is done for each of them, and what is kept, is counted."""

import gc
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

import vario
from vario.probes.inputs.batch_row_history import BatchRowHistory
from vario.rules import RULES
from vario.rules.api.series_state import Memory
from vario.rules.api.step_view import Facts, Step

PACKAGE = str(Path(vario.__file__).parent)


class Many(torch.nn.Module):
    """Parameters of a few elements each."""

    def __init__(self, num_parameters):
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.full((4,), index % 7 / 7) for index in range(num_parameters))

    def forward(self, inputs):
        return (torch.stack(list(self.parts)) * inputs).square().mean()


class CallsOfOurs:
    """Counts calls of vario's own functions on this thread."""

    def __enter__(self):
        self.count = 0
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _see(self, frame, event, _):
        self.count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)


def calls_for(num_parameters, kind):
    """How often functions of vario are called to watch a model, and in an ordinary step of it."""
    model = Many(num_parameters)
    optimizer = kind(model.parameters(), lr=1e-3)
    with CallsOfOurs() as attaching:
        monitor = vario.watch(model, optimizer, sinks=["in_memory"], strict=True)
    with monitor:
        # After the first updates, which are all watched.
        for step in range(15):
            with CallsOfOurs() as stepping:
                model(torch.full((4,), 1.0 + step)).backward()
                optimizer.step()
                optimizer.zero_grad()
    recorded = monitor.sinks["in_memory"].records[14].frames
    assert [len(frame.targets) for frame in recorded if frame.quantity == "gradient"] == [num_parameters]
    return attaching.count, stepping.count


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_parameter_more_costs_a_few_calls(kind):
    (few_attach, few_step), (many_attach, many_step) = calls_for(300, kind), calls_for(500, kind)
    assert (many_attach - few_attach) / 200 < 6
    assert (many_step - few_step) / 200 < 2


def test_very_many_small_tensors_have_the_summaries_of_each():
    torch.manual_seed(0)
    kinds = [((4,), torch.float32), ((3, 2), torch.float64), ((1,), torch.bfloat16), ((5,), torch.float16)]
    model = torch.nn.Module()
    model.parts = torch.nn.ParameterList(
        torch.randn(shape).to(dtype) for shape, dtype in (kinds[index // 300] for index in range(1200))
    )
    model.forward = lambda: sum((part.double() ** 2).sum() for part in model.parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    parts = dict(model.named_parameters())
    with vario.watch(model, optimizer, sinks=["in_memory"], strict=True, every={"update": 1, "weight": 1}) as monitor:
        before = {name: part.detach().double().clone() for name, part in parts.items()}
        model.forward().backward()
        gradients = {name: part.grad.double() for name, part in parts.items()}
        optimizer.step()
        after = {name: part.detach().double() for name, part in parts.items()}
        changes = {f"{name}:change": after[name] - before[name] for name in parts}
        monitor.wait()
        frames = {frame.quantity: frame for frame in monitor.sinks["in_memory"].records[0].frames}
    for quantity, wanted in (("gradient", gradients), ("weight", after), ("update", changes)):
        found = dict(zip(frames[quantity].targets, frames[quantity].summaries, strict=True))
        assert wanted.keys() <= found.keys()
        for name, tensor in wanted.items():
            expected = [tensor.numel(), tensor.sum(), tensor.square().sum(), tensor.min(), tensor.max()]
            np.testing.assert_allclose(found[name][:5], [float(one) for one in expected], rtol=1e-3, atol=1e-3)


def test_rows_of_very_many_gradients_are_in_the_order_of_backward(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(300)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with vario.watch(model, optimizer, directory=tmp_path) as monitor:
        for layers in (model, model, model[:150], model):
            layers(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = vario.open_run(monitor.path)
    for step, count in enumerate((300, 300, 150, 300)):
        frame = run.frame(step, "gradient").sort_by("order")
        ordered = frame.column("target").to_pylist()
        assert ordered[:count] == [f"{index}.weight" for index in reversed(range(count))]


@pytest.mark.parametrize(
    "rule",
    [found.part for found in RULES if found.part.needs and found.part.over == "rank"],
    ids=lambda rule: rule.name,
)
def test_a_rule_says_and_learns_nothing_where_what_it_needs_is_missing(rule):
    memory = Memory()
    names = ("loss", "loss_local", "loss_backward", "eval_loss", "lr", "lr/1", "step_seconds", "skipped_step")
    names = (*names, "batch_repeated", "gradient_left_over", "setting/1/betas", "accuracy")
    numbers = {name: 1.0 for name in names if not rule.looks_at([name])}
    step = Step(3, 0.0, numbers, [], Facts(), memory)
    assert "accuracy" in numbers
    assert not rule.looks_at(numbers)
    assert not list(rule.look(step, **rule.options))
    assert not memory.save()


def test_rows_of_batches_take_no_more_room_after_more_steps():
    seen, sizes = BatchRowHistory(), []
    chance = np.random.default_rng(0)
    for _ in range(3):
        for _ in range(200):
            seen.add(chance.integers(0, 1 << 62, 1000).astype(np.uint64))
        sizes.append(sum(getattr(value, "nbytes", 0) for value in vars(seen).values()))
        assert len(seen._recent) <= 1 << 14
    assert sizes[0] == sizes[1] == sizes[2] < 3 << 20


def test_what_a_monitor_holds_does_not_grow_with_steps(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    held = []
    with vario.watch(model, optimizer, directory=tmp_path) as monitor:
        for part in range(4):
            for _ in range(250):
                model(torch.randn(2, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            monitor.wait()
            gc.collect()  # what waits to be collected is not held
            if not part:
                tracemalloc.start()
            else:
                held.append(tracemalloc.take_snapshot())
        tracemalloc.stop()
    # Rows of batches are remembered up to a limit, see above.
    ours = [
        tracemalloc.Filter(True, f"{PACKAGE}/*"),
        tracemalloc.Filter(False, f"{PACKAGE}/probes/inputs/batch_row_history.py"),
    ]
    grown = held[2].filter_traces(ours).compare_to(held[1].filter_traces(ours), "lineno")
    # 33 bytes a step, less than any object. Fewer steps would not do: the room that Python keeps for a hundred small
    # objects comes and goes.
    assert not [str(one) for one in grown if one.size_diff > 8192]
