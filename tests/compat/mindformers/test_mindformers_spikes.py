"""Spikes of the gradient norm, skipped steps and the health of checkpoints: rules and actions."""

import json

import pytest
import torch
from monitored import content

import vario
from vario.compat.mindformers import CheckpointHealth, load_yaml

STEPS = 30


class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def train(config, spikes, steps=STEPS, factor=1e3, health=None):
    """Train until the monitor asks to stop; in some steps the loss is that much larger."""
    torch.manual_seed(0)
    model = Embedded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with vario.watch(model, optimizer, config=config) as monitor:
        for step in range(steps):
            loss = model(torch.randint(0, 8, (4, 3))).square().mean() * (factor if step in spikes else 1.0)
            loss.backward()
            for each in model.parameters():
                each.grad.nan_to_num_()  # a loop that skips bad updates leaves the weights alone
            optimizer.step()
            optimizer.zero_grad()
            monitor.wait()
            if health is not None and (step + 1) % 5 == 0:
                health.record(monitor, epoch=1, step=step + 1)
            if monitor.should_stop:
                break
    return vario.open_run(monitor.path), step


def norm_alerts(run, rule="gradient_norm_limit"):
    return [alert for alert in run.alerts if alert.rule == rule]


def test_a_spike_asks_to_stop_and_is_recorded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_yaml(content(tmp_path, {"check_for_global_norm": True, "global_norm_spike_threshold": 50.0}))
    run, last = train(config, {12})
    [alert] = norm_alerts(run)
    assert (alert.step, alert.rank, alert.high) == (12, None, 50.0)
    assert alert.value >= 50
    assert last < STEPS - 1


def test_after_a_restart_the_same_step_does_not_stop_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_yaml(
        content(tmp_path, {"check_for_global_norm": True, "global_norm_spike_threshold": 50.0}), name="run"
    )
    train(config, {12})
    again = load_yaml(config.settings.content, name="run", resume=True, first_step=10)
    run, last = train(again, {2}, steps=20)  # step 12 again
    assert last == 19
    assert run.last_step == 29


def test_below_the_threshold_nothing_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_yaml(content(tmp_path, {"check_for_global_norm": True, "global_norm_spike_threshold": 1e9}))
    run, last = train(config, {12})
    assert not norm_alerts(run)
    assert last == STEPS - 1


@pytest.mark.parametrize("factor", [1e3, float("nan")])
def test_skipped_steps_are_counted_and_a_nan_is_a_spike(tmp_path, monkeypatch, factor):
    """In the original a NaN norm resets the count, so training may skip forever."""
    monkeypatch.chdir(tmp_path)
    monitor = {"global_norm_spike_threshold": 50.0, "global_norm_spike_count_threshold": 3}
    config = load_yaml(content(tmp_path, monitor, use_skip_data_by_global_norm=True))
    run, last = train(config, {5, 6, 10, 11, 12, 13}, factor=factor)
    assert [alert.step for alert in norm_alerts(run)] == [12]
    assert "3 steps in a row" in norm_alerts(run)[0].text
    assert last < STEPS - 1


def test_a_nan_stops_if_asked_to(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_yaml(content(tmp_path, check_for_nan_in_loss_and_grad=True))
    run, last = train(config, {12}, factor=float("nan"))
    assert last < STEPS - 1
    assert any(alert.rule == "non_finite" and alert.step == 12 for alert in run.alerts)


def test_the_health_of_checkpoints_follows_the_embedding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = load_yaml(content(tmp_path, {"health_checkpoint": {"embedding_local_norm_threshold": 50.0}}))
    health = CheckpointHealth(tmp_path / "output")
    run, _ = train(config, {12}, health=health)
    [alert] = norm_alerts(run, "embedding_norm_limit")
    assert (alert.step, alert.target) == (12, "embedding.weight")
    lines = json.loads((tmp_path / "output" / "health_ckpts.json").read_text())
    assert [(line["step"], line["is_health"]) for line in lines] == [
        (5, 1),
        (10, 1),
        (15, 0),
        (20, 1),
        (25, 1),
        (30, 1),
    ]
    assert health.newest_healthy()["step"] == 30
    assert CheckpointHealth(tmp_path / "output").newest_healthy(before=16)["step"] == 10
