"""Rules in a training process: what they remember outlives a restart, and what they do never reaches training."""

import json
import logging

import torch

import vario
from models import Perceptron, batch
from vario.rules import Finding, rule


def trained(folder, steps, first=0, change=lambda step, model: None, **options):
    torch.manual_seed(first)
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with vario.watch(model, optimizer, directory=str(folder), name="run", every=1, **options) as monitor:
        for step in range(first, first + steps):
            change(step, model)
            loss = model(batch(step)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            monitor.log(loss=losses[-1])
    return losses, vario.open_run(folder / "run")


def grown(at):
    def change(step, model):
        if step == at:
            with torch.no_grad():
                next(iter(model.parameters())).mul_(50)

    return change


def test_what_rules_remember_is_taken_up_on_resume(tmp_path):
    trained(tmp_path, 60)
    _, run = trained(tmp_path, 10, first=60, change=grown(64), resume=True, strict=True)
    # Ten steps are far too few to know what is usual: it was known before.
    jumps = [alert for alert in run.alerts if alert.rule == "activation_jump"]
    assert jumps
    assert min(alert.step for alert in jumps) == 64


def test_a_state_that_cannot_be_read_costs_a_warm_up_and_not_the_run(tmp_path, caplog):
    trained(tmp_path, 60)
    (tmp_path / "run" / "rank0" / "rules.npz").write_bytes(b"torn")
    with caplog.at_level(logging.WARNING, logger="vario"):
        _, run = trained(tmp_path, 10, first=60, resume=True, strict=True)
    assert "rules start over" in caplog.text
    assert run.state == "finished"


def test_a_rule_that_raises_is_switched_off_and_training_goes_on(tmp_path):
    @rule("limit")
    def broken(step):
        """Breaks at step 3."""
        if step.number == 3:
            raise ZeroDivisionError("on purpose")
        yield Finding(f"seen {step.number}", "scalar", "loss", 1.0)

    losses, run = trained(tmp_path, 8, rules=[broken, "non_finite"])
    plain, _ = trained(tmp_path / "other", 8, rules=False)
    assert losses == plain
    assert [part.part for part in run.parts_off] == ["rule broken"]
    assert [alert.step for alert in run.alerts] == [0]


def test_without_rules_nothing_is_found_and_nothing_written(tmp_path):
    _, run = trained(tmp_path, 8, rules=False, change=lambda step, model: None)
    assert not (run.path / "rank0" / "alerts.jsonl").exists()
    assert not (run.path / "rank0" / "rules.npz").exists()


def test_an_incident_is_said_once_and_stands_in_the_run(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="vario"):
        _, run = trained(tmp_path, 80, change=grown(60))
    said = [record for record in caplog.records if "vario diagnose" in record.getMessage()]
    assert len(said) == 1
    # A whole tensor was written, as code does it; a few elements would be an error.
    assert said[0].levelno == logging.WARNING
    lines = (run.path / "rank0" / "incidents.jsonl").read_text().splitlines()
    assert [json.loads(line)["lead"]["rule"] for line in lines] == ["unexplained_change"]
    assert "changed by up to" in said[0].getMessage()
