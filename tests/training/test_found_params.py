"""Hyper-parameters: given, or found where a script has them anyway; stored in the run and read back."""

import argparse
import json
import sys
import weakref

import pytest
import torch
from torch import nn

import vario
from vario.core.errors import ConfigError


def train(folder, name="run", optimizer_of=None, steps=2, has_optimizer=True, **options):
    model = nn.Linear(4, 1)
    made = (optimizer_of or (lambda parameters: torch.optim.SGD(parameters, lr=0.5)))(model.parameters())
    watched = made if has_optimizer else None
    with vario.watch(model, watched, directory=str(folder), name=name, strict=True, **options) as monitor:
        for _ in range(steps):
            made.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            made.step()
            monitor.log(loss=1.0)
    return vario.open_run(folder / name)


def test_what_is_given_is_in_the_run(tmp_path):
    run = train(tmp_path, params={"depth": 3, "net": {"width": 8, "act": "gelu"}, "betas": (0.9, 0.99), "odd": object})
    assert {name: value for name, value in run.params.items() if run.param_sources[name] == "given"} == {
        "depth": 3,
        "net.width": 8,
        "net.act": "gelu",
        "betas": [0.9, 0.99],
        "odd": "<class 'object'>",
    }
    assert "params" not in run.config


def test_a_namespace_of_a_calling_function_is_found_and_what_is_given_takes_precedence(tmp_path):
    args = argparse.Namespace(lr=0.25, layers=[1, 2], hf_token="secret", func=print, model=argparse.Namespace(width=3))

    def main():
        return train(tmp_path, params={"lr": 0.125})

    run = main()
    assert vars(args)["lr"] == 0.25
    assert run.params["lr"] == 0.125
    assert (run.params["layers"], run.params["model.width"]) == ([1, 2], 3)
    assert run.param_sources["layers"] == "argparse"
    assert "secret" not in (run.path / "run.json").read_text()
    assert "func" not in run.params


def test_looking_keeps_nothing_alive_and_changes_no_variable(tmp_path):
    class Large:
        pass

    def main():
        large = Large()
        seen = weakref.ref(large)
        with vario.watch(nn.Linear(2, 1), directory=str(tmp_path), name="alive"):
            del large
            assert seen() is None
        config = locals()
        with vario.watch(nn.Linear(2, 1), directory=str(tmp_path), name="kept"):
            assert config["seen"] is seen

    main()


def test_the_environment_adds_some(tmp_path, monkeypatch):
    monkeypatch.setenv("VARIO_PARAMS", "seed=3,name=a b,layers=[1,2],flag=true")
    run = train(tmp_path)
    assert [run.params[name] for name in ("seed", "name", "layers", "flag")] == [3, "a b", [1, 2], True]
    monkeypatch.setenv("VARIO_PARAMS", "nonsense")
    assert "nonsense" not in train(tmp_path, "other").params


@pytest.mark.parametrize("has_optimizer", [True, False])
def test_the_optimizers_settings_are_found_given_or_not(tmp_path, has_optimizer):
    def optimizer_of(parameters):
        made = torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)
        torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.0)
        return made

    run = train(tmp_path, optimizer_of=optimizer_of, has_optimizer=has_optimizer)
    assert run.params["optimizer"] == "AdamW"
    # The schedule has set it to 0 already.
    assert (run.params["optimizer.lr"], run.params["optimizer.weight_decay"]) == (0.01, 0.1)
    assert run.params["optimizer.betas"] == [0.9, 0.999]


def test_a_hydra_config_is_found(tmp_path):
    omegaconf = pytest.importorskip("omegaconf")
    config = omegaconf.OmegaConf.create({"lr": 0.1, "model": {"depth": 2, "twice": "${lr}"}})
    run = train(tmp_path)
    assert (run.params["lr"], run.params["model.depth"], run.params["model.twice"]) == (0.1, 2, config.lr)


def test_each_session_has_its_own_and_the_latest_counts(tmp_path):
    train(tmp_path, params={"lr": 1})
    run = train(tmp_path, params={"lr": 2}, resume=True)
    assert run.params["lr"] == 2
    assert [session["params"]["lr"] for session in run.sessions] == [1, 2]


def test_a_run_of_an_older_version_has_none_and_odd_ones_are_left_out(tmp_path):
    run = train(tmp_path)
    header = json.loads((run.path / "run.json").read_text())
    del header["sessions"][0]["params"], header["sessions"][0]["param_sources"]
    (run.path / "run.json").write_text(json.dumps(header))
    assert vario.open_run(run.path).params == {}
    header["sessions"][0]["params"] = {"big": 10**400, "deep": {"a": [{"b": 1}]}, "fine": 1}
    (run.path / "run.json").write_text(json.dumps(header))
    assert {name: value for name, value in vario.open_run(run.path).params.items() if name != "big"} == {"fine": 1}


@pytest.mark.parametrize("given", [3, ["lr"], {1: 2}])
def test_params_that_are_no_table_are_refused(given):
    with pytest.raises(ConfigError, match="params"):
        vario.Config(params=given)


def test_they_are_in_the_diff_whole_and_in_sql(tmp_path):
    words = ["a" * 70 + "b", "a" * 70 + "c"]
    one, two = (train(tmp_path, name, params={"lr": 1.5, "text": word}) for name, word in zip("xy", words, strict=True))
    found = vario.diff(one, two)
    assert found.settings["params.text"] == tuple(words)
    assert "params.lr" not in found.settings
    assert "aab / ...aa" in str(found)
    assert "aac" in str(found)
    assert "..." not in str(vario.diff(one, one))
    pytest.importorskip("duckdb")
    assert one.sql("select number from params where name = 'lr'").to_pylist() == [{"number": 1.5}]


def test_a_flag_sets_them(tmp_path):
    from vario.cli import make_parser
    from vario.cli.commands import load
    from vario.cli.options import config_from

    words = ["--params", "lr=0.1,name=first", "--params", "depth=3", "train.py"]
    config = config_from(make_parser("run", load("run")).parse_args(words))
    assert config.params == {"lr": 0.1, "name": "first", "depth": 3}
    assert sys.version_info >= (3, 10)
