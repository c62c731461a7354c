"""An unexpected error while watching begins: a warning, and a training that goes on unwatched."""

import pytest
import torch

import vario
from vario.core.process import last_guard


def broken(*args, **kwargs):
    raise AttributeError("no such name in this release")


def test_a_model_that_cannot_be_watched_trains_unwatched(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("vario.training.monitor.find_backend", broken)
    model = torch.nn.Linear(2, 1)
    monitor = vario.watch(model, directory=tmp_path)
    model(torch.ones(1, 2)).sum().backward()
    monitor.log(loss=1.0)
    monitor.close()
    assert monitor.path is None
    [line] = [record.getMessage() for record in caplog.records]
    assert "training continues unwatched. AttributeError: no such name in this release" in line
    with pytest.raises(AttributeError, match="no such name"):
        vario.watch(model, directory=tmp_path, strict=True)


def test_a_wrong_option_or_model_is_still_an_error(tmp_path):
    with pytest.raises(vario.ConfigError, match="quantites"):
        vario.watch(torch.nn.Linear(2, 1), quantites=["weight"])
    with pytest.raises(vario.ModelError):
        vario.watch("a model", directory=tmp_path)


def test_a_run_that_cannot_start_lets_the_script_go_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("vario.training.run_log.RunLog.__init__", broken)
    with vario.start("numbers", directory=tmp_path) as run:
        run.log(reward=1.0)
    assert "the script continues without one" in caplog.text


def test_an_error_of_a_hook_that_nobody_follows_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(last_guard, "_told", [])
    monkeypatch.setattr(last_guard, "_logged", set())
    for _ in range(5):
        last_guard.safely(broken)
    assert len(caplog.records) == 1
