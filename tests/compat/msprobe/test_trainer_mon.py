"""A TrainerMon in a training loop: what the documents promise, also where msprobe crashes or writes old numbers."""

import copy
import csv
import json
import os
import runpy
import shutil
import warnings

import pytest
import reading
import torch
from plain_loop import perceptron, take_steps, watch, write_config
from torch import nn

import training
from vario.compat.msprobe import TrainerMon
from vario.compat.msprobe.trainer_mon import StructureSaved
from vario.core import package
from vario.core.errors import ConfigError, ModelError

GRADIENTS = {"wg_distribution": True, "ops": ["norm", "min", "max", "mean"]}


@pytest.fixture
def out(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(folder))
    return folder


def test_losses_are_the_same_with_everything_on_and_without(out):
    everything = {
        **GRADIENTS,
        "xy_distribution": True,
        "mv_distribution": True,
        "param_distribution": True,
        "mg_direction": True,
        "recording_l2_features": True,
        "l2_targets": {"linear_hook": [], "attention_hook": ["0:decoder.layers.0.core_attention"]},
    }
    job = {"monitor": "vario", "out": str(out), "model": "gpt", "accumulate": 2, "steps": 6}
    watched = training.train({**job, "config": everything})
    assert watched == training.train({**job, "config": {}})


def test_a_parameter_without_a_gradient_in_a_step_has_no_row_in_it(out):
    class TwoExperts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])
            self.chosen = 0

        def forward(self, x):
            return self.experts[self.chosen](x)

    model = TwoExperts()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = watch(out, {**GRADIENTS, "xy_distribution": True}, model, optimizer)
    take_steps(model, optimizer, 3, lambda step: setattr(model, "chosen", 1))
    monitor.close()
    for prefix in ("grad_unreduced", "grad_reduced", "actv", "actv_grad"):
        seen = {
            (int(row["step"]), row["name"].split(".")[1]) for row in reading.rows(out, prefix) if row["name"][0] == "e"
        }
        assert seen == {(0, "0"), (1, "1"), (2, "1")}, prefix


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_moments_and_direction_of_sgd(out, momentum):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    monitor = watch(out, {"mv_distribution": True, "mg_direction": True}, model, optimizer)
    take_steps(model, optimizer)
    monitor.close()
    prefixes = {path.name.split("_0-")[0].rsplit("_", 1)[0] for path in reading.rank_folder(out).iterdir()}
    assert prefixes == ({"momentum_buffer", "other"} if momentum else set())
    assert reading.steps(out, "momentum_buffer") == ([1, 2] if momentum else [])


def test_any_path_can_be_written(tmp_path, monkeypatch):
    out = tmp_path / "lr = 1e-3, größe+x"
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(out))
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(write_config(out, GRADIENTS))
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    take_steps(model, optimizer)
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [0, 1, 2]


def test_a_disk_that_takes_nothing_for_a_while_costs_no_row_and_no_training(out, caplog):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {**GRADIENTS, "step_count_per_record": 10}, model, optimizer)

    def break_and_mend(step):
        monitor._monitor.wait()
        if step == 1:
            shutil.rmtree(out)
            out.write_text("a file where the folder was")
        if step == 3:
            out.unlink()

    take_steps(model, optimizer, 6, break_and_mend)
    monitor.close()
    # Steps 0 and 1 were deleted; 2 and 3 waited in memory.
    assert reading.steps(out, "grad_reduced") == [2, 3, 4, 5]
    assert caplog.text.count("cannot be written") == 1


@pytest.mark.parametrize(("ranks", "recorded"), [([0], [0, 1, 2]), ([], [0, 1, 2]), ([1], None)])
def test_module_ranks_without_a_process_group_mean_rank_0(out, ranks, recorded):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {**GRADIENTS, "module_ranks": ranks}, model, optimizer)
    take_steps(model, optimizer)
    monitor.close()
    assert out.exists() == (recorded is not None)
    if recorded is not None:
        assert reading.steps(out, "grad_reduced") == recorded


def test_accelerate_with_accumulation_has_one_step_per_update(out):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = perceptron()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    monitor = watch(out, {**GRADIENTS, "monitor_mbs_grad": True}, model, optimizer, grad_acc_steps=2)
    for _ in range(6):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.randn(4, 6)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [0, 1, 2]
    assert {(row["step"], row["micro_step"]) for row in reading.rows(out, "grad_unreduced")} == {
        (str(step), str(micro)) for step in range(3) for micro in range(2)
    }


def test_gradients_per_micro_batch_are_each_ones_own(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    twin = copy.deepcopy(model)
    monitor = watch(out, {**GRADIENTS, "monitor_mbs_grad": True, "ndigits": 12}, model, optimizer, grad_acc_steps=2)
    batches = [torch.randn(4, 6), torch.randn(4, 6)]
    expected = []
    for batch in batches:
        model(batch).square().mean().backward()
        twin.zero_grad()
        twin(batch).square().mean().backward()
        expected.append(float(twin.up.weight.grad.double().norm()))
    optimizer.step()
    monitor.close()
    found = [float(row["norm"]) for row in reading.rows(out, "grad_unreduced") if row["name"] == "up.weight"]
    assert found == pytest.approx(expected, rel=1e-6)


def test_small_values_keep_their_digits(out):
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = watch(out, {**GRADIENTS, "mv_distribution": True}, model, optimizer)
    for _ in range(2):
        (model(torch.randn(4, 6)).square().mean() * 1e-12).backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    for prefix in ("grad_reduced", "exp_avg", "exp_avg_sq"):
        for row in reading.rows(out, prefix):
            assert 0 < float(row["norm"]) < 1e-6, (prefix, row)
            assert len(row["norm"].partition("e")[0].replace(".", "")) >= 5


def test_layers_1_is_not_layers_10(out):
    config = {**GRADIENTS, "targets": {"decoder.layers.1": {}}}
    training.train({"monitor": "vario", "out": str(out), "config": config, "model": "deep", "steps": 1})
    names = {row["name"] for row in reading.rows(out, "grad_reduced")}
    assert names
    assert all(name.startswith("decoder.layers.1.") for name in names)


@pytest.mark.parametrize(
    ("sides", "expected"),
    [
        ({}, {"actv": ["input_0", "input_1", "output"], "actv_grad": ["input", "output"]}),
        ({"output": "tensor"}, {"actv": ["output"], "actv_grad": []}),
        ({"input": "tuple[2]:1", "output_grad": "tuple[1]:0"}, {"actv": ["input"], "actv_grad": ["output"]}),
        ({"input": "tuple[2]", "input_grad": "tuple[1]"}, {"actv": ["input_0", "input_1"], "actv_grad": ["input"]}),
    ],
)
def test_only_the_sides_a_target_asks_for_are_recorded(out, sides, expected):
    config = {"targets": {"decoder.layers.0": sides}, "xy_distribution": True}
    training.train({"monitor": "vario", "out": str(out), "config": config, "model": "gpt", "steps": 1})
    for prefix, names in expected.items():
        found = sorted(row["name"].removeprefix("decoder.layers.0.") for row in reading.rows(out, prefix))
        assert found == names


def test_a_target_that_is_not_there_is_said_and_the_others_recorded(out, caplog):
    config = {**GRADIENTS, "targets": {"up": {}, "dwon": {}}}
    training.train({"monitor": "vario", "out": str(out), "config": config})
    assert "targets: 'dwon' is neither a module nor a parameter of this model. Did you mean '0:down'?" in caplog.text
    assert {row["name"] for row in reading.rows(out, "grad_reduced")} == {"up.weight", "up.bias"}


def test_names_with_colons_and_slashes_stay_whole(out):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.tower = nn.ModuleDict({"image:left/right": nn.Linear(6, 3)})

        def forward(self, x):
            return self.tower["image:left/right"](x)

    model = Odd()
    optimizer = torch.optim.AdamW(model.parameters())
    config = {**GRADIENTS, "xy_distribution": True, "mv_distribution": True}
    monitor = watch(out, config, model, optimizer)
    take_steps(model, optimizer, 2)
    monitor.close()
    for prefix in ("grad_reduced", "exp_avg", "actv"):
        names = {row["name"].rpartition(".")[0] for row in reading.rows(out, prefix)}
        assert "tower.image:left/right" in names, prefix
        assert {row["vpp_stage"] for row in reading.rows(out, prefix)} == {"0"}


def test_a_skipped_step_of_a_grad_scaler_counts_as_a_step(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = watch(out, {**GRADIENTS, "ops": ["norm", "nans"]}, model, optimizer)
    expected = []
    for step in range(3):
        loss = model(torch.randn(4, 6)).square().mean() * (float("inf") if step == 1 else 1.0)
        scaler.scale(loss).backward()
        expected.append(float(model.up.weight.grad.double().norm()) / scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    monitor.close()
    unreduced = [row for row in reading.rows(out, "grad_unreduced") if row["name"] == "up.weight"]
    assert [int(row["step"]) for row in unreduced] == [0, 1, 2]
    # The loss scale is taken out.
    assert [float(unreduced[step]["norm"]) for step in (0, 2)] == pytest.approx([expected[0], expected[2]], rel=1e-5)
    assert unreduced[1]["norm"] in ("nan", "inf")


def test_a_closure_is_read_after_it_ran(out):
    model = perceptron()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    monitor = watch(out, GRADIENTS, model, optimizer)
    batch = torch.randn(4, 6)

    def closure():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [0, 1]


def test_frozen_parameters_have_no_rows(out):
    model = perceptron()
    model.up.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    config = {**GRADIENTS, "param_distribution": True, "mv_distribution": True}
    monitor = watch(out, config, model, optimizer)
    take_steps(model, optimizer)
    monitor.close()
    for prefix in ("grad_reduced", "param_origin", "param_updated", "exp_avg"):
        assert {row["name"] for row in reading.rows(out, prefix)} == {"down.weight", "down.bias"}, prefix


def test_the_structure_is_saved_and_training_stops(out):
    job = {"monitor": "vario", "out": str(out), "config": {"print_struct": True}, "model": "gpt"}
    with pytest.raises(StructureSaved, match=r"print_struct: the structure of the model is in .*module_struct\.json"):
        training.train(job)
    structure = json.loads((out / "module_struct" / "rank0" / "module_struct.json").read_text())
    assert structure["0:decoder.layers.0.core_attention"] == {
        "input": {
            "config": "tuple[3]",
            **{str(nth): "size=(5, 3, 2, 4), dtype=torch.float32" for nth in range(3)},
        },
        "output": {
            "config": "tuple[2]",
            "0": "size=(3, 5, 8), dtype=torch.float32",
            "1": "<class 'NoneType'>",
        },
        "input_grad": {
            "config": "tuple[3]",
            **{str(nth): "size=(5, 3, 2, 4), dtype=torch.float32" for nth in range(3)},
        },
        "output_grad": {
            "config": "tuple[2]",
            "0": "size=(3, 5, 8), dtype=torch.float32",
            "1": "<class 'NoneType'>",
        },
    }
    assert structure["0:embedding.word"]["input_grad"] == {"config": "tuple[1]", "0": "<class 'NoneType'>"}
    assert structure["0:"]["output"] == {"config": "tensor", "tensor": "size=(3, 5, 17), dtype=torch.float32"}


def test_call_stacks_of_the_first_step_lead_to_the_callers(out):
    job = {"monitor": "vario", "out": str(out), "config": {"stack_info": True, "start_step": 1}, "model": "gpt"}
    training.train(job)
    with (reading.rank_folder(out) / "stack_info.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["module_name", "stack_info"]
    stacks = dict(rows)
    assert "x = x + self.proj(self.core_attention(query, key, value)[0])" in stacks["0:decoder.layers.0.core_attention"]
    innermost = stacks["0:decoder.layers.0.core_attention"].splitlines()[0]
    assert "training.py" in innermost
    assert "nn/modules/module.py" not in stacks["0:decoder.layers.0.core_attention"]
    assert package.FOLDER not in stacks["0:"]


@pytest.mark.parametrize("place", ["vario/backends/torch/loop/hooks.py", "nn/modules/module.py"])
def test_a_users_file_that_is_called_like_ours_stays_in_call_stacks(out, tmp_path, place):
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text("def step(model, inputs, optimizer):\n    model(inputs).mean().backward()\n    optimizer.step()\n")
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = watch(out, {"stack_info": True}, model, optimizer)
    runpy.run_path(str(path))["step"](model, torch.randn(4, 6), optimizer)
    monitor.close()
    with (reading.rank_folder(out) / "stack_info.csv").open(newline="") as file:
        stacks = "".join(stack for _, stack in csv.reader(file))
    assert f"File {path}, line 2, in step" in stacks


def test_collect_times_ends_it_and_takes_every_hook_off(out):
    model = perceptron()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = watch(out, {**GRADIENTS, "xy_distribution": True, "collect_times": 2}, model, optimizer)
    assert any(module._forward_hooks for module in model.modules())
    take_steps(model, optimizer, 4)
    assert reading.steps(out, "grad_reduced") == [0, 1]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._backward_hooks for parameter in model.parameters())
    monitor.close()


def test_collect_times_0_collects_nothing(out):
    training.train({"monitor": "vario", "out": str(out), "config": {**GRADIENTS, "collect_times": 0}})
    assert list(reading.rank_folder(out).iterdir()) == []


def test_api_gives_the_statistics_of_the_step_in_progress(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {**GRADIENTS, "xy_distribution": True, "format": "api"}
    monitor = watch(out, config, model, optimizer)
    for step in range(2):
        model(torch.randn(4, 6)).square().mean().backward()
        before = float(model.up.weight.grad.norm())
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        reduced, unreduced = monitor.generate_wgrad_metrics()
        assert float(unreduced["0:up.weight/rank0/acc_grad"]["norm"]) == pytest.approx(before, rel=1e-5), step
        after = float(model.up.weight.grad.norm())
        assert float(reduced["0:up.weight/rank0/post_grad"]["norm"]) == pytest.approx(after, rel=1e-5)
        optimizer.step()
        again = monitor.generate_wgrad_metrics()
        assert float(again[0]["0:up.weight/rank0/post_grad"]["norm"]) == pytest.approx(after, rel=1e-5)
        actv, actv_grad = monitor.generate_xy_metrics()
        assert set(actv["0:down.output:0/rank0/actv"]) == {"norm", "min", "max", "mean"}
        assert actv_grad["0:down.output:0/rank0/actv_grad"]["norm"].shape == ()
        optimizer.zero_grad()
    monitor.close()
    assert not out.exists()


def test_ops_may_change_while_training(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, {"wg_distribution": True, "ops": ["norm"]}, model, optimizer)
    take_steps(model, optimizer, 4, lambda step: setattr(monitor, "ops", ["min", "max"]) if step == 1 else None)
    monitor.close()
    headers = {name: header[3:] for name, (header, _) in reading.files(out).items() if name.startswith("grad_reduced")}
    assert headers["grad_reduced_1-1.csv"] == ["norm", "shape", "dtype"]
    assert headers["grad_reduced_2-2.csv"] == ["min", "max", "shape", "dtype"]
    assert reading.steps(out, "grad_reduced") == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="ops: expected a list"):
        monitor.ops = "norm"


def test_activations_may_be_switched_on_while_training(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(out, GRADIENTS, model, optimizer)

    def switch(step):
        if step in (0, 2):
            with pytest.warns(DeprecationWarning, match="reload_xy is deprecated"):
                monitor.reload_xy(xy_distribution=step == 0)

    take_steps(model, optimizer, 5, switch)
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [0, 1, 2, 3, 4]
    assert reading.steps(out, "actv") == [1, 2]
    assert {row["name"] for row in reading.rows(out, "actv")} >= {".input", "up.output", "down.output"}


def test_the_old_calls_work_and_warn(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(write_config(out, GRADIENTS), None, False, "Megatron_DistributedOptimizer")
    with pytest.warns(DeprecationWarning, match="set_wrapped_optimizer is deprecated"):
        monitor.set_wrapped_optimizer(optimizer)
    with pytest.warns(DeprecationWarning, match="monitor_gnorm_with_ad is deprecated"):
        monitor.monitor_gnorm_with_ad(model, grad_acc_steps=1, start_iteration=7)
    take_steps(model, optimizer, 2)
    monitor.close()
    assert reading.steps(out, "grad_reduced") == [7, 8]


def test_both_orders_of_arguments_are_understood(out):
    for order in ("documented", "of the code"):
        model = perceptron()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = TrainerMon(write_config(out, GRADIENTS))
        monitor.set_monitor(model, *((1, optimizer) if order == "documented" else (optimizer, 1)))
        take_steps(model, optimizer, 1)
        monitor.close()
        assert reading.steps(out, "grad_reduced") == [0]
        shutil.rmtree(out)


def test_what_cannot_be_watched_is_refused_before_the_first_step(out):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(write_config(out, GRADIENTS))
    with pytest.raises(ModelError, match="set_monitor: optimizer: expected the optimizer that updates the model"):
        monitor.set_monitor(model, 1)
    with pytest.raises(ConfigError, match="grad_acc_steps: expected a whole number of at least 1, got 0"):
        monitor.set_monitor(model, 0, optimizer)
    with pytest.raises(ConfigError, match="start_iteration: expected a whole number of at least 0, got -1"):
        monitor.set_monitor(model, 1, optimizer, start_iteration=-1)
    expected = r"model: expected a mindspore\.nn\.Cell or a torch\.nn\.Module, or a list of them, got NoneType"
    with pytest.raises(ModelError, match=expected):
        monitor.set_monitor(None, 1, optimizer)
    with pytest.raises(ModelError, match=r"optimizer: expected a torch\.optim\.Optimizer, got str"):
        monitor.set_monitor(model, 1, "adamw")
    with pytest.raises(ConfigError, match="config_file_path: expected the path of a JSON file, got dict"):
        TrainerMon({"wg_distribution": True})
    monitor.set_monitor(model, 1, optimizer)
    with pytest.raises(ModelError, match="already watches a model"):
        monitor.set_monitor(perceptron(), 1, optimizer)
    monitor.close()


def test_a_new_monitor_takes_the_place_of_one_that_nobody_closed(out, capsys):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(2):
        monitor = watch(out, {**GRADIENTS, "format": "csv"}, model, optimizer, start_iteration=10 * number)
        take_steps(model, optimizer, 2)
    monitor.close()
    assert "vario: the model was watched by another TrainerMon, which is now closed" in capsys.readouterr().err
    found = sorted(path.name for folder in out.iterdir() for path in folder.glob("grad_reduced*"))
    assert found == [f"grad_reduced_{step}-{step}.csv" for step in (0, 1, 10, 11)]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_it_says_once_where_it_records_and_when_it_has_ended(out, capsys):
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(out, {**GRADIENTS, "start_step": 1, "collect_times": 2}, model, optimizer)
    take_steps(model, optimizer, 4)
    assert capsys.readouterr().err.splitlines() == [
        f"vario: recording from step 1 to {reading.rank_folder(out)}",
        "vario: collect_times is reached at step 2: nothing is recorded from now on",
    ]


@pytest.mark.parametrize("config", [{"targets": {}}, {"format": "csv", "ops": ["norm"], "ndigits": 12}])
def test_a_config_that_switches_nothing_on_is_told(out, config, capsys):
    training.train({"monitor": "vario", "out": str(out), "config": config, "steps": 1})
    assert "vario: the config enables nothing (wg_distribution," in capsys.readouterr().err


def test_a_side_that_is_not_there_is_said_once(out, caplog):
    config = {"targets": {"up": {"input": "tuple[2]:1", "output": "tensor"}}, "xy_distribution": True}
    training.train({"monitor": "vario", "out": str(out), "config": config})
    assert caplog.text.count("targets: 0:up: no such input, so it has no rows") == 1
    assert {row["name"] for row in reading.rows(out, "actv")} == {"up.output"}


def test_rows_that_no_disk_took_are_counted_at_the_end(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "file" / "sub"))
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = tmp_path / "monitor.json"
    config.write_text(json.dumps(GRADIENTS))
    monitor = TrainerMon(config)
    monitor.set_monitor(model, 1, optimizer)
    take_steps(model, optimizer, 2)
    monitor.close()
    assert [line.split(": ", 1)[1][:14] for line in caplog.messages] == ["cannot be writ", "16 rows could "]


def test_a_resumed_run_appends_and_takes_back_what_it_does_again(out):
    job = {"monitor": "vario", "out": str(out), "steps": 5, "model": "perceptron"}
    config = {**GRADIENTS, "step_count_per_record": 4}
    training.train({**job, "config": config})
    tag = reading.rank_folder(out).name.partition("-rank")[0]
    training.train({**job, "config": {**config, "append_output": [tag, tag]}, "start": 3, "steps": 4})
    found = [int(row["step"]) for row in reading.rows(out, "grad_reduced") if row["name"] == "up.bias"]
    assert found == [0, 1, 2, 3, 4, 5, 6]
    assert set(reading.files(out)) == {
        f"{kind}_{span}.csv" for kind in ("grad_reduced", "grad_unreduced") for span in ("0-3", "4-7")
    }


def test_a_rank_without_a_folder_to_append_to_begins_a_new_one(out, caplog):
    config = {**GRADIENTS, "append_output": ["Dec03_21-34-40", "Dec03_21-34-41"]}
    training.train({"monitor": "vario", "out": str(out), "config": config, "steps": 1})
    assert "append_output: rank 0 has no folder in that range" in caplog.text
    assert reading.steps(out, "grad_reduced") == [0]


def test_a_compiled_model_has_the_rows_of_an_eager_one(out):
    config = {**GRADIENTS, "xy_distribution": True, "ndigits": 12}
    found = {}
    for kind in ("eager", "compiled"):
        model = perceptron()
        batch = torch.ones(4, 6)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = watch(out, config, model, optimizer)
        called = torch.compile(model, backend="aot_eager", fullgraph=True) if kind == "compiled" else model
        for _ in range(2):
            called(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.close()
        found[kind] = {
            (prefix, row["name"], row["step"]): float(row["norm"])
            for prefix in ("actv", "grad_reduced")
            for row in reading.rows(out, prefix)
        }
        shutil.rmtree(out)
    assert found["compiled"].keys() == found["eager"].keys()
    assert found["compiled"] == pytest.approx(found["eager"], rel=1e-5)


def test_nothing_is_warned_about_in_a_plain_loop(out):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.train({"monitor": "vario", "out": str(out), "config": {**GRADIENTS, "xy_distribution": True}})
    assert os.environ["MONITOR_OUTPUT_DIR"] == str(out)
