"""Which rows a step has, and with whose numbers, in loops that are not plain."""

import pytest
import reading
import torch
from plain_loop import perceptron, take_steps, watch
from torch import nn

from vario.core.errors import ModelError

GRADIENTS = {"wg_distribution": True, "ops": ["norm"]}


@pytest.fixture
def out(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(folder))
    return folder


def test_parameters_frozen_and_thawed_on_the_way_have_rows_while_they_train(out):
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = watch(out, {**GRADIENTS, "param_distribution": True}, model, optimizer)
    # Right after the update: the rows of the step before may not be written yet.
    take_steps(model, optimizer, 8, lambda step: model.up.requires_grad_(step % 2 == 1))
    monitor.close()
    for prefix in ("grad_unreduced", "grad_reduced", "param_origin", "param_updated"):
        steps = [int(row["step"]) for row in reading.rows(out, prefix) if row["name"] == "up.weight"]
        assert steps == [0, 2, 4, 6], prefix


def test_a_forward_that_raised_leaves_nothing_in_the_rows_of_the_next_attempt(out):
    class OutOfMemory(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(6, 8)
            self.down = nn.Linear(8, 3)

        def forward(self, x):
            x = self.up(x)
            if x.shape[0] > 4:
                raise RuntimeError("out of memory")
            return self.down(x)

    model = OutOfMemory()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {"xy_distribution": True, "ops": ["max"]}, model, optimizer)
    for size in (4, 8, 4):
        try:
            model(torch.full((size, 6), float(size))).sum().backward()
        except RuntimeError:
            model(torch.full((size // 2, 6), 1.0)).sum().backward()
        optimizer.step()
    monitor.close()
    found = [float(row["max"]) for row in reading.rows(out, "actv") if row["name"] == "up.input"]
    assert found == [4.0, 1.0, 4.0]
    assert {row["shape"] for row in reading.rows(out, "actv") if row["name"] == ".input"} == {"[4, 6]"}


def test_modules_left_in_evaluation_mode_number_their_inputs_as_others_do(out):
    class Frozen(nn.Module):
        def forward(self, *, x, y):
            return x + y

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = nn.Linear(6, 6)
            self.frozen = Frozen().eval()

        def forward(self, x):
            return self.frozen(x=self.up(x), y=x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {"xy_distribution": True}, model, optimizer)
    take_steps(model, optimizer, 1)
    monitor.close()
    names = [row["name"] for row in reading.rows(out, "actv") if row["name"].startswith("frozen")]
    assert names == ["frozen.input_0", "frozen.input_1", "frozen.output"]


def test_micro_batches_of_a_pipeline_are_told_apart(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    config = {**GRADIENTS, "xy_distribution": True, "monitor_mbs_grad": True, "ops": ["max"]}
    monitor = watch(out, config, model, optimizer, grad_acc_steps=4)
    for _ in range(2):
        # Two are on their way before the first one comes back, as on the first stage of two.
        waiting = [model(torch.full((2, 6), float(number))) for number in (1, 2)]
        for number in (3, 4, None, None):
            (waiting.pop(0).sum() * 0 + model.down.bias.sum() * (4 if number is None else number - 2)).backward()
            if number is not None:
                waiting.append(model(torch.full((2, 6), float(number))))
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    for step in ("0", "1"):
        inputs = [
            (row["micro_step"], float(row["max"]))
            for row in reading.rows(out, "actv")
            if row["name"] == "up.input" and row["step"] == step
        ]
        assert inputs == [("0", 1.0), ("1", 2.0), ("2", 3.0), ("3", 4.0)]
        for prefix, name in (("actv_grad", "down.output"), ("grad_unreduced", "up.weight")):
            found = [
                row["micro_step"] for row in reading.rows(out, prefix) if row["name"] == name and row["step"] == step
            ]
            assert found == ["0", "1", "2", "3"], prefix


def test_a_model_called_twice_per_micro_batch_has_one_row_for_both(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = watch(out, {"xy_distribution": True, "ops": ["max"]}, model, optimizer, grad_acc_steps=2)
    for _ in range(3):
        for micro in range(2):
            pair = [model(torch.full((2, 6), float(10 * micro + which))) for which in (1, 2)]
            (pair[0] - pair[1]).sum().backward()
        optimizer.step()
    monitor.close()
    found = [
        (row["step"], row["micro_step"], float(row["max"]))
        for row in reading.rows(out, "actv")
        if row["name"] == "up.input" and row["step"] != "0"
    ]
    assert found == [(step, micro, most) for step in ("1", "2") for micro, most in (("0", 2.0), ("1", 12.0))]


def test_parameters_before_an_update_with_a_closure_are_those_before_it(out):
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    monitor = watch(out, {"param_distribution": True, "ndigits": 9}, model, optimizer)
    batch = torch.randn(4, 6)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    norms = [float(model.up.weight.detach().double().norm())]
    for _ in range(2):
        optimizer.step(closure)
        norms.append(float(model.up.weight.detach().double().norm()))
    monitor.close()
    assert norms[0] != norms[1]
    for prefix, expected in (("param_origin", norms[:2]), ("param_updated", norms[1:])):
        found = [float(row["norm"]) for row in reading.rows(out, prefix) if row["name"] == "up.weight"]
        assert found == pytest.approx(expected, rel=1e-7), prefix


@pytest.mark.parametrize("target", ["module.down", "0:module.down", "down", "0:down", "down.weight"])
def test_targets_may_leave_out_what_wrappers_add_to_names(out, target):
    model = perceptron()
    wrapped = nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {**GRADIENTS, "targets": {target: {}}}, wrapped, optimizer)
    take_steps(wrapped, optimizer, 1)
    monitor.close()
    names = [row["name"] for row in reading.rows(out, "grad_reduced")]
    assert names == ["module.down.weight", "module.down.bias"][: 1 if "weight" in target else 2]


def test_gradients_asked_for_before_backward_are_not_those_of_the_step_before(out):
    class TwoExperts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
            self.chosen = 0

        def forward(self, x):
            return self.experts[self.chosen](x)

    model = TwoExperts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {**GRADIENTS, "xy_distribution": True}, model, optimizer)
    for expert in (0, 1):
        model.chosen = expert
        loss = model(torch.randn(4, 6)).sum()
        assert monitor.generate_wgrad_metrics() == ({}, {})
        optimizer.zero_grad()
        loss.backward()
        reduced, _ = monitor.generate_wgrad_metrics()
        assert {tag.split(".")[1] for tag in reduced} == {str(expert)}
        optimizer.step()
    monitor.close()
    assert {(row["step"], row["name"].split(".")[1]) for row in reading.rows(out, "grad_reduced")} == {
        ("0", "0"),
        ("1", "1"),
    }


def test_changing_ops_does_not_begin_collect_times_anew(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {**GRADIENTS, "collect_times": 3, "step_interval": 2}, model, optimizer)
    take_steps(model, optimizer, 8, lambda step: setattr(monitor, "ops", ["min" if step % 2 else "max"]))
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [0, 2, 4]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_closed_monitor_does_not_start_again_when_ops_change(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, GRADIENTS, model, optimizer)
    take_steps(model, optimizer, 2)
    monitor.close()
    monitor.ops = ["min"]
    take_steps(model, optimizer, 2)
    assert reading.steps(out, "grad_reduced") == [0, 1]
    assert not any(module._forward_hooks for module in model.modules())


def test_a_parameter_without_a_shape_is_refused_by_its_name(out):
    model = nn.Sequential(nn.Linear(6, 3), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ModelError, match=r"'1\.weight' of Sequential has no shape yet"):
        watch(out, GRADIENTS, model, optimizer)
