"""The YAML blocks: every key, default and accepted value; everything that is wrong is told at once, at the start."""

import dataclasses
import json
import logging
import pickle
import subprocess
import sys

import pytest
import torch
from monitored import content, train

import vario
from starting import run_warm
from vario.compat.mindformers import MFLossMonitor, load_yaml, watch
from vario.compat.mindformers.settings import FORMATS
from vario.core.errors import ConfigError

SAMPLE = """
seed: 0
output_dir: './output'

monitor_config:
    monitor_on: True
    dump_path: './dump'
    target: ['layers.0', 'layers.1']
    invert: False
    step_interval: 1
    local_loss_format: ['log', 'tensorboard']
    device_local_loss_format: ['log', 'tensorboard']
    local_norm_format: ['log', 'tensorboard']
    device_local_norm_format: ['log', 'tensorboard']
    optimizer_state_format: null
    weight_state_format: null
    throughput_baseline: null
    print_struct: False

tensorboard:
    tensorboard_dir: 'worker/tensorboard'
    tensorboard_queue_size: 10
    log_loss_scale_to_tensorboard: True
    log_timers_to_tensorboard: True

callbacks:
    - type: MFLossMonitor
      per_print_times: 1
"""


def problems(found):
    with pytest.raises(ConfigError) as raised:
        load_yaml(found)
    return str(raised.value)


def test_the_documented_sample_is_accepted(tmp_path):
    path = tmp_path / "sample.yaml"
    path.write_text(SAMPLE)
    found = load_yaml(path)
    both = {"log", "tensorboard"}
    monitor = found.settings.monitor
    assert isinstance(found, vario.Config)
    assert (monitor.target, monitor.local_norm_format) == (("layers.0", "layers.1"), both)
    assert monitor.optimizer_state_format == frozenset()
    assert found.settings.tensorboard.tensorboard_dir == "worker/tensorboard"
    assert found.settings.loss_monitor.per_print_times == 1
    assert found.quantities == ("gradient",)


def test_defaults_are_the_documented_ones():
    found = load_yaml({"monitor_config": {}, "tensorboard": {"tensorboard_dir": "b"}}).settings
    monitor = found.monitor
    assert not monitor.monitor_on
    assert (monitor.dump_path, monitor.target, monitor.invert, monitor.step_interval) == ("./dump", (".*",), False, 1)
    assert all(getattr(monitor, key) == frozenset() for key in FORMATS)
    assert (monitor.throughput_baseline, monitor.print_struct) == (None, False)
    assert (monitor.global_norm_spike_threshold, monitor.global_norm_spike_count_threshold) == (3.0, 10)
    assert (monitor.stable_rank.step_interval, monitor.stable_rank.power_iteration_num) == (100, 5)
    board = found.tensorboard
    assert board.tensorboard_queue_size == 10
    assert not board.log_loss_scale_to_tensorboard
    assert not board.log_timers_to_tensorboard
    assert not board.log_expert_load_to_tensorboard


def test_null_means_the_default_where_the_page_says_so():
    found = load_yaml({"monitor_config": {"dump_path": None, "target": None, "throughput_baseline": None}})
    assert (found.settings.monitor.dump_path, found.settings.monitor.target) == ("./dump", (".*",))
    assert load_yaml({"monitor_config": {"target": []}}).settings.monitor.target == (".*",)


@pytest.mark.parametrize("value", ["log", "tensorboard", ["log"], ["log", "tensorboard"], None, []])
def test_what_a_format_accepts(value):
    found = load_yaml({"monitor_config": {"local_norm_format": value}, "tensorboard": {"tensorboard_dir": "b"}})
    expected = [value] if isinstance(value, str) else value or []
    assert found.settings.monitor.local_norm_format == frozenset(expected)


def test_everything_that_is_wrong_is_told_at_once():
    text = problems(
        {
            "monitor_config": {
                "monitor_on": "yes",
                "target": ["*", "layers.("],
                "step_interval": True,
                "local_norm_format": "csv",
                "weight_state_format": 3,
                "throughput_baseline": 0,
                "lokal_loss_format": "log",
                "stable_rank_config": {"format": 1, "steps": 3},
            },
            "tensorboard": {"tensorboard_queue_size": 0, "tensorboard_folder": "x"},
            "callbacks": [{"type": "MFLossMonitr"}, {"per_print_times": 2}, {"type": "MFLossMonitor", "per_prints": 1}],
        }
    )
    for part in (
        "monitor_config.monitor_on: expected true or false, got 'yes'",
        "monitor_config.target: '*' is not a regular expression: nothing to repeat at position 0. Write '.*' for all",
        "monitor_config.target: 'layers.(' is not a regular expression",
        "monitor_config.step_interval: expected a whole number of at least 1, got True",
        "monitor_config.local_norm_format: unknown 'csv'",
        "monitor_config.weight_state_format: expected 'log', 'tensorboard', a list of them, or null, got 3",
        "monitor_config.throughput_baseline: expected a number above 0, got 0",
        "monitor_config: unknown 'lokal_loss_format'. Did you mean 'local_loss_format'?",
        "monitor_config.stable_rank_config: unknown 'steps'",
        "tensorboard.tensorboard_dir: missing",
        "tensorboard: unknown 'tensorboard_folder'. Did you mean 'tensorboard_dir'?",
        "tensorboard.tensorboard_queue_size: expected a whole number of at least 1, got 0",
        "callbacks[0]: unknown type 'MFLossMonitr'. Did you mean 'MFLossMonitor'?",
        "callbacks[1]: expected an entry with a `type`",
        "callbacks[2]: unknown 'per_prints'. Did you mean 'per_print_times'?",
    ):
        assert part in text, part
    assert "settings cannot be used" in text


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("target", "layers.0", "Write ['layers.0']"),
        ("target", [1], "a list of names"),
        ("invert", None, "true or false"),
        ("step_interval", 0, "at least 1"),
        ("step_interval", 1.5, "at least 1"),
        ("throughput_baseline", True, "a number above 0"),
        ("print_struct", 1, "true or false"),
        ("dump_path", 3, "text"),
        ("global_norm_spike_threshold", -1.0, "a number above 0"),
    ],
)
def test_a_wrong_value_names_the_key_and_what_is_expected(key, value, says):
    text = problems({"monitor_config": {key: value}})
    assert text.startswith(f"monitor_config.{key}: ")
    assert says in text


def test_spikes_are_either_skipped_or_stop_the_training():
    text = problems({"monitor_config": {"check_for_global_norm": True}, "use_skip_data_by_global_norm": True})
    assert "Set one of the two to false" in text


def test_without_a_tensorboard_block_tensorboard_becomes_log_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING, "vario"):
        monitor = {"monitor_on": True, "local_norm_format": "tensorboard", "local_loss_format": ["log", "tensorboard"]}
        found = load_yaml({"monitor_config": {**monitor, "weight_state_format": "log"}}).settings.monitor
    assert found.local_norm_format == found.local_loss_format == found.weight_state_format == {"log"}
    [record] = caplog.records
    assert "'tensorboard' becomes 'log' for local_loss_format, local_norm_format" in record.getMessage()
    assert "weight_state_format" not in record.getMessage()


def test_callbacks_of_other_kinds_are_left_alone():
    found = load_yaml({"callbacks": [{"type": "CheckpointMonitor", "prefix": "x"}, {"type": "ObsMonitor"}]})
    assert found.settings.loss_monitor is None


def test_options_of_vario_take_precedence(tmp_path):
    found = load_yaml(content(tmp_path), name="mine", quantities=["weight"])
    assert (found.name, found.quantities) == ("mine", ("weight",))


def test_the_same_file_as_a_flag_of_vario_run(tmp_path):
    (tmp_path / "mf.yaml").write_text(json.dumps(content(tmp_path)))  # YAML that is JSON too
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(6, 3)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "for _ in range(3):\n"
        "    model(torch.randn(4, 6)).square().mean().backward()\n"
        "    optimizer.step(); optimizer.zero_grad()\n"
    )
    done = run_warm(["-m", "vario", "run", "--mindformers-config", "mf.yaml", "--name", "mf", "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "local_norm/weight: " in done.stderr
    run = vario.open_run(tmp_path / "vario_runs" / "mf")
    assert run.series("device_local_norm", "scalar").values.shape == (3,)


def test_print_struct_stops_a_script_of_vario_run_before_it_trains(tmp_path):
    (tmp_path / "mf.yaml").write_text(json.dumps(content(tmp_path, {"print_struct": True})))
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(6, 3)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "model(torch.randn(4, 6)).square().mean().backward()\n"
        "optimizer.step()\n"
        "print('trained')\n"
    )
    done = run_warm(["-m", "vario", "run", "--mindformers-config", "mf.yaml", "train.py"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "* weight  3x6" in done.stderr
    assert "trained" not in done.stdout


def test_a_missing_extra_is_its_install_line(tmp_path):
    (tmp_path / "mf.yaml").write_text(SAMPLE)
    code = (
        "import sys; sys.modules['yaml'] = None\n"
        "from vario.compat.mindformers import load_yaml\n"
        "try:\n    load_yaml('mf.yaml')\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "MissingExtra" in done.stdout
    assert "pip install 'vario[yaml]'" in done.stdout


def test_print_struct_lists_the_trainable_parameters_and_stops_before_training(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = torch.nn.Sequential(torch.nn.Linear(6, 3), torch.nn.Linear(3, 2))
    model[1].bias.requires_grad_(False)
    before = model[0].weight.detach().clone()
    config = load_yaml(content(tmp_path, {"print_struct": True, "target": ["^0"]}))
    with pytest.raises(vario.VarioError, match="print_struct: 3 trainable parameters") as raised:
        train(config, model)
    lines = str(raised.value).splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["*", "0.weight"], ["*", "0.bias"]]
    assert lines[3].split()[:2] == ["1.weight", "2x3"]
    assert torch.equal(before, model[0].weight)
    assert not (tmp_path / "vario_runs").exists()


def test_a_config_travels_to_the_processes_that_a_script_starts(tmp_path):
    config = load_yaml(content(tmp_path), name="run")
    again = pickle.loads(pickle.dumps(config))
    assert again == config
    assert type(dataclasses.replace(again, name="other")) is type(config)
    assert json.dumps(config.to_json())


def test_switched_off_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VARIO", "off")
    train(load_yaml(content(tmp_path)), steps=2)
    model = torch.nn.Linear(6, 3)
    with watch(model, None, [MFLossMonitor()], tensorboard={"tensorboard_dir": str(tmp_path / "board")}):
        pass
    assert list(tmp_path.iterdir()) == []
