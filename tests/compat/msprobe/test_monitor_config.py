"""The JSON config: every field, its default, and a refusal that names field, value and what is accepted."""

import dataclasses
import json
import logging

import pytest

from vario.compat.msprobe.config import MonitorConfig, Spec, make_monitor_config, read_monitor_config
from vario.core.errors import ConfigError


def test_an_empty_config_has_the_documented_defaults():
    config = make_monitor_config({})
    assert config == MonitorConfig()
    assert (config.start_step, config.step_interval, config.collect_times) == (0, 1, 100_000_000)
    assert (config.format, config.ndigits, config.eps, config.step_count_per_record) == ("csv", 6, 1e-8, 1)
    assert config.ops == ("norm", "shape", "dtype")
    assert config.sa_order == "s,b,h,d"
    flags = [item.name for item in dataclasses.fields(MonitorConfig) if item.type == "bool"]
    assert not any(getattr(config, flag) for flag in flags)


def test_the_config_of_the_documents_is_taken():
    config = make_monitor_config(
        {
            "targets": {
                "language_model.encoder.layers.0": {
                    "input": "tuple[2]:0",
                    "output": "tensor",
                    "input_grad": "tuple[2]:0",
                    "output_grad": "tuple[1]:0",
                }
            },
            "dynamic_on": False,
            "start_step": 0,
            "collect_times": 100000000,
            "step_interval": 1,
            "print_struct": False,
            "module_ranks": [0, 1, 2, 3],
            "ur_distribution": True,
            "xy_distribution": True,
            "all_xy": True,
            "forward_only": False,
            "backward_only": False,
            "mv_distribution": True,
            "param_distribution": True,
            "wg_distribution": True,
            "monitor_mbs_grad": True,
            "cc_distribution": {"enable": True, "cc_codeline": ["train.py\\[23\\]"], "cc_pre_hook": True},
            "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": False},
            "format": "tensorboard",
            "ops": ["min", "max", "norm", "zeros", "nans", "mean"],
            "eps": 1e-8,
            "ndigits": 12,
            "step_count_per_record": 1,
            "append_output": [],
            "squash_name": True,
            "stack_info": True,
            "l2_targets": {"attention_hook": ["0:0.attention"], "linear_hook": []},
            "recording_l2_features": True,
            "sa_order": "b, s, h, d",
        }
    )
    sides = config.targets["language_model.encoder.layers.0"]
    assert sides["input"] == Spec(2, 0)
    assert sides["output"] == Spec()
    assert config.statistics == ("min", "max", "norm", "zeros", "nans", "mean")
    assert config.alert_rules[0].threshold == 0.5
    assert config.sa_order == "b,s,h,d"
    assert config.l2_targets == {"attention_hook": ("0:0.attention",), "linear_hook": ()}
    assert config.ur_distribution
    assert (config.cc_enable, config.cc_codeline) == (True, ("train.py\\[23\\]",))
    assert (config.cc_pre_hook, config.cc_log_only) == (True, False)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("wg_distribtion", True, "field: unknown 'wg_distribtion'. Did you mean 'wg_distribution'?"),
        ("wg_distribution", "no", 'wg_distribution: expected true or false, got "no"'),
        ("forward_only", 1, "forward_only: expected true or false, got 1"),
        ("mv_distribution", None, "mv_distribution: expected true or false, got null"),
        ("start_step", -1, "start_step: expected a whole number of at least 0, got -1"),
        ("start_step", True, "start_step: expected a whole number of at least 0, got true"),
        ("step_interval", 0, "step_interval: expected a whole number of at least 1, got 0"),
        ("collect_times", 1.5, "collect_times: expected a whole number of at least 0, got 1.5"),
        ("ndigits", 0, "ndigits: expected a whole number of at least 1 and at most 20, got 0"),
        ("ndigits", 21, "ndigits: expected a whole number of at least 1 and at most 20, got 21"),
        ("step_count_per_record", 0, "step_count_per_record: expected a whole number of at least 1"),
        ("eps", "small", 'eps: expected a number of at least 0, got "small"'),
        ("format", "parquet", "format: expected one of 'csv', 'tensorboard', 'api', got \"parquet\""),
        ("ops", "norm", 'ops: expected a list of norm, min, max, mean, nans, zeros, id, got "norm"'),
        ("module_ranks", [0, "1"], 'module_ranks: expected a list of rank numbers, got [0, "1"]'),
        ("module_ranks", [True], "module_ranks: expected a list of rank numbers"),
        ("module_ranks", 0, "module_ranks: expected a list of rank numbers, got 0"),
        ("targets", ["fc"], "targets: expected an object of module or parameter names"),
        ("targets", {"fc": "input"}, "targets: fc: expected an object such as"),
        ("targets", {"fc": {"inputs": "tensor"}}, "targets: fc: unknown 'inputs'. Did you mean 'input'?"),
        ("targets", {"fc": {"input": "tuple"}}, "targets: fc: input: expected 'tensor', 'tuple[2]' or 'tuple[2]:0'"),
        ("targets", {"fc": {"input": "tensor[2]:0"}}, "targets: fc: input: expected 'tensor'"),
        ("targets", {"fc": {"input": "tuple[2]:2"}}, "targets: fc: input: expected an index below 2"),
        ("alert", [], "alert: expected an object with 'rules' and 'dump'"),
        ("alert", {"rule": []}, "alert: unknown 'rule'. Did you mean 'rules'?"),
        ("alert", {"rules": {}, "dump": 1}, "alert: dump: expected true or false, got 1"),
        ("alert", {"rules": [{"rule_name": "Spike"}]}, "alert: rules: rule_name: expected one of 'AnomalyTurbulence'"),
        ("alert", {"rules": [{"rule_name": "AnomalyTurbulence"}]}, "AnomalyTurbulence needs args"),
        (
            "alert",
            {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": -1}}]},
            "alert: rules: AnomalyNan: threshold: expected a number of at least 0, got -1",
        ),
        ("cc_distribution", {"enabled": True}, "cc_distribution: unknown 'enabled'. Did you mean 'enable'?"),
        ("cc_distribution", {"enable": 1}, "cc_distribution: enable: expected true or false, got 1"),
        ("cc_distribution", {"cc_codeline": ["a["]}, "cc_distribution: cc_codeline: 'a[' is not a regular expression"),
        ("cc_log_only", True, "field: unknown 'cc_log_only'"),
        ("append_output", ["Dec03_21-34-40"], "append_output: expected two time tags such as 'Dec03_21-34-40', or []"),
        ("append_output", ["yesterday", "today"], "append_output: expected two time tags such as 'Dec03_21-34-40'"),
        ("l2_targets", {"attn_hook": []}, "l2_targets: unknown 'attn_hook'. Did you mean 'attention_hook'?"),
        ("l2_targets", {"linear_hook": "fc"}, "l2_targets: linear_hook: expected a list of module names"),
        ("sa_order", "h,s,b,d", "sa_order: expected one of 's,b,h,d', 'b,s,h,d'"),
    ],
)
def test_a_wrong_field_is_refused_by_name(tmp_path, field, value, message):
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps({field: value}))
    with pytest.raises(ConfigError) as refused:
        read_monitor_config(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert message in str(refused.value)


def test_what_is_not_a_config_is_refused_with_its_place(tmp_path):
    path = tmp_path / "monitor.json"
    with pytest.raises(ConfigError, match=r"monitor\.json: cannot be read: No such file"):
        read_monitor_config(path)
    path.write_text('{"ops": [}')
    with pytest.raises(ConfigError, match=r"monitor\.json: not valid JSON"):
        read_monitor_config(path)
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"monitor\.json: expected an object of fields, got list"):
        read_monitor_config(path)


def test_ops_nobody_knows_are_left_out_and_without_any_the_norm_is_taken(caplog):
    assert make_monitor_config({"ops": ["max", "median", "max"]}).ops == ("max", "shape", "dtype")
    assert "ops: unknown and ignored: median. Known: norm, min" in caplog.text
    assert make_monitor_config({"ops": []}).ops == ("norm", "shape", "dtype")
    assert make_monitor_config({"ops": ["dtype"]}).ops == ("norm", "dtype", "shape")


def test_both_only_flags_give_a_warning(caplog):
    make_monitor_config({"xy_distribution": True, "forward_only": True, "backward_only": True})
    assert "forward_only and backward_only are both true" in caplog.text


def test_heat_maps_need_tensorboard(caplog):
    with caplog.at_level(logging.WARNING):
        assert not make_monitor_config({"ur_distribution": True}).ur_distribution
    assert "needs format 'tensorboard'" in caplog.text


def test_without_targets_all_modules_are_watched():
    assert make_monitor_config({"xy_distribution": True}).all_xy
    assert not make_monitor_config({"xy_distribution": True, "targets": {"fc": {}}}).all_xy
    assert make_monitor_config({"eps": 1, "ndigits": None}).ndigits == 6
