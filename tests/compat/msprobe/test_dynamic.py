"""Starting and stopping while training runs: the six scenarios of the documents, and edits that go wrong."""

import json
import os

import pytest
import reading
import torch

import training
from vario.compat.msprobe import TrainerMon

GRADIENTS = {"wg_distribution": True, "ops": ["norm"]}


class Session:
    """Trains eight steps under DYNAMIC_MONITOR; `edits` change the config after the steps they are listed under."""

    def __init__(self, tmp_path, monkeypatch):
        self.out = tmp_path / "out"
        self.path = tmp_path / "monitor.json"
        monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(self.out))

    def edit(self, text):
        before = self.path.stat().st_mtime_ns if self.path.exists() else 0
        self.path.write_text(text if isinstance(text, str) else json.dumps(text))
        # Two edits within one tick of the file system's clock are still two edits.
        os.utime(self.path, ns=(max(self.path.stat().st_mtime_ns, before + 1_000_000),) * 2)

    def train(self, config, edits=None, num_steps=8):
        self.edit(config)
        torch.manual_seed(0)
        model = training.Perceptron()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = TrainerMon(self.path)
        monitor.set_monitor(model, 1, optimizer)
        for step in range(num_steps):
            model(torch.randn(4, 6)).square().mean().backward()
            if step in (edits or {}):
                self.edit(edits[step])
            optimizer.step()
            optimizer.zero_grad()
        monitor.close()
        return model

    def steps(self, prefix="grad_reduced"):
        return reading.steps(self.out, prefix) if self.out.exists() else []

    @property
    def content(self):
        return json.loads(self.path.read_text())


@pytest.fixture
def session(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    return Session(tmp_path, monkeypatch)


@pytest.mark.parametrize("dynamic_on", [True, False])
@pytest.mark.parametrize("environment", ["False", None])
def test_scenario_1_static_mode_does_not_look_at_dynamic_on(tmp_path, monkeypatch, dynamic_on, environment):
    if environment is None:
        monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)
    else:
        monkeypatch.setenv("DYNAMIC_MONITOR", environment)
    session = Session(tmp_path, monkeypatch)
    session.train({**GRADIENTS, "dynamic_on": dynamic_on}, num_steps=3)
    assert session.steps() == [0, 1, 2]
    assert session.content["dynamic_on"] == dynamic_on


@pytest.mark.parametrize("config", [GRADIENTS, {**GRADIENTS, "dynamic_on": False}])
def test_scenario_2_nothing_is_recorded_until_it_is_switched_on(session, config):
    session.train(config)
    assert not session.out.exists()


def test_scenario_3_switched_on_from_the_start_it_records_from_step_1(session):
    session.train({**GRADIENTS, "dynamic_on": True, "collect_times": 3, "start_step": 5})
    assert session.steps() == [1, 2, 3]
    assert session.content == {**GRADIENTS, "dynamic_on": False, "collect_times": 3, "start_step": 5}


def test_scenario_4_switched_on_on_the_way_it_records_from_the_next_step(session):
    session.train(GRADIENTS, {3: {**GRADIENTS, "dynamic_on": True, "collect_times": 2}})
    assert session.steps() == [4, 5]
    assert session.content["dynamic_on"] is False


def test_scenario_5_a_new_config_takes_over_and_counts_from_0(session):
    first = {**GRADIENTS, "dynamic_on": True, "collect_times": 4}
    session.train(first, {3: {**first, "ops": ["min", "max"], "xy_distribution": True, "collect_times": 2}})
    # 1 to 3 by the old config, 4 and 5 by the new one.
    assert session.steps() == [1, 2, 3, 4, 5]
    assert session.steps("actv") == [4, 5]
    headers = {name: header[3:-2] for name, (header, _) in reading.files(session.out).items()}
    assert headers["grad_reduced_3-3.csv"] == ["norm"]
    assert headers["grad_reduced_4-4.csv"] == ["min", "max"]


def test_scenario_5_collect_times_0_stops_it(session):
    config = {**GRADIENTS, "dynamic_on": True}
    session.train(config, {3: {**config, "collect_times": 0}})
    assert session.steps() == [1, 2, 3]
    assert session.content["dynamic_on"] is False


def test_scenario_6_it_can_be_restarted_after_it_ended(session):
    config = {**GRADIENTS, "dynamic_on": True, "collect_times": 2}
    session.train(config, {4: {**config, "ops": ["mean"]}})
    assert session.steps() == [1, 2, 5, 6]
    assert reading.files(session.out)["grad_reduced_5-5.csv"][0][3:-2] == ["mean"]
    assert session.content["dynamic_on"] is False


def test_dynamic_on_false_stops_it(session):
    config = {**GRADIENTS, "dynamic_on": True}
    session.train(config, {3: {**config, "dynamic_on": False}})
    assert session.steps() == [1, 2, 3]


@pytest.mark.parametrize("broken", ['{"dynamic_on": tr', '{"dynamic_on": true, "ops": 3}', '{"dynamic_on": "yes"}'])
def test_a_broken_edit_keeps_the_old_config_and_says_so_once(session, caplog, broken):
    session.train({**GRADIENTS, "dynamic_on": True}, {2: broken, 4: broken})
    assert session.steps() == [1, 2, 3, 4, 5, 6, 7]
    assert caplog.text.count("the changed config is invalid") == 1


def test_a_broken_edit_while_nothing_is_recorded_starts_nothing_and_a_mended_one_does(session, caplog):
    session.train(GRADIENTS, {2: "{", 4: {**GRADIENTS, "dynamic_on": True}})
    assert session.steps() == [5, 6, 7]
    assert caplog.text.count("the changed config is invalid") == 1


def test_a_removed_file_changes_nothing(session, caplog):
    session.edit({**GRADIENTS, "dynamic_on": True})
    torch.manual_seed(0)
    model = training.Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(session.path)
    monitor.set_monitor(model, 1, optimizer)
    for step in range(4):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        if step == 1:
            session.path.unlink()
        optimizer.zero_grad()
    monitor.close()
    assert session.steps() == [1, 2, 3]
    assert caplog.text.count("No such file") == 1


def test_all_restarts_write_into_one_folder_and_leave_the_model_as_it_was(session):
    config = {**GRADIENTS, "dynamic_on": True, "xy_distribution": True, "collect_times": 2}
    model = session.train(config, {3: {**config, "ops": ["mean"]}, 6: {**config, "ops": ["max"]}})
    assert session.steps() == [1, 2, 4, 5, 7]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_read_only_config_stays_as_it_is(session, caplog):
    session.edit({**GRADIENTS, "dynamic_on": True, "collect_times": 2})
    model = training.Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(session.path)
    monitor.set_monitor(model, 1, optimizer)
    session.path.chmod(0o444)
    for _ in range(6):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    assert session.steps() == [1, 2]
    assert session.content["dynamic_on"] is True
    assert session.path.stat().st_mode & 0o777 == 0o444
    assert "read-only, so dynamic_on stays true there" in caplog.text


def test_a_linked_config_stays_a_link_and_keeps_its_permissions(session, tmp_path):
    real = tmp_path / "shared.json"
    real.write_text("{}")
    real.chmod(0o664)
    session.path.symlink_to(real)
    session.train({**GRADIENTS, "dynamic_on": True, "collect_times": 2})
    assert session.steps() == [1, 2]
    assert session.path.is_symlink()
    assert json.loads(real.read_text())["dynamic_on"] is False
    assert real.stat().st_mode & 0o777 == 0o664


def test_a_file_put_in_place_of_the_config_is_noticed_however_old_it_looks(session, tmp_path):
    session.edit(GRADIENTS)
    model = training.Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon(session.path)
    monitor.set_monitor(model, 1, optimizer)
    for step in range(4):
        model(torch.randn(4, 6)).square().mean().backward()
        if step == 1:
            before = session.path.stat()
            other = tmp_path / "other.json"
            text = json.dumps({**GRADIENTS, "dynamic_on": True})
            session.path.write_text(json.dumps(GRADIENTS).ljust(len(text)))
            os.utime(session.path, ns=(before.st_mtime_ns,) * 2)
            optimizer.step()
            other.write_text(text)
            os.utime(other, ns=(before.st_mtime_ns,) * 2)
            os.replace(other, session.path)
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    assert session.steps() == [3, 4]
