"""Spectra of the weights of watched models, against numpy on the weights each step's forward used."""

import numpy as np
import pytest
import torch
from torch import nn

import vario
from models import Attentive, Perceptron, batch, ids, language_loss
from watching import rows, watch


def expected(model):
    """{target: value} of all linear layers of a model as it is now."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            weight = module.weight.detach().double().numpy()
            norm = np.linalg.norm(weight, 2)
            found[f"{name}:spectral_norm"] = norm
            found[f"{name}:stable_rank"] = (np.linalg.norm(weight) / norm) ** 2
    return found


def check_step(recorded, step, values):
    found = {key[3]: row for key, row in recorded.items() if key[0] == step}
    assert found.keys() == values.keys()
    for target, value in values.items():
        count, total = found[target][:2]
        assert count == 1
        assert total == pytest.approx(value, rel=1e-3), (step, target)


def test_norm_and_rank_are_those_of_the_weights_the_forward_used():
    torch.manual_seed(0)
    model = Attentive()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    used = []
    with watch(model, optimizer, ["spectrum"]) as monitor:
        for step in range(4):
            used.append(expected(model))
            for micro_step in range(2):
                language_loss(model, ids(10 * step + micro_step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert "layers.1.qkv:spectral_norm" in used[0]
    for step in range(4):
        check_step(rows(monitor), step, used[step])
    assert {key[2] for key in rows(monitor)} == {0}


def test_only_chosen_modules_are_measured_and_the_schedule_is_kept(tmp_path):
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"directory": str(tmp_path), "quantities": ["spectrum"], "every": {"spectrum": 2}, "targets": ["down"]}
    with vario.watch(model, optimizer, **options) as monitor:
        for step in range(5):
            model(batch(step)).square().mean().backward()
            optimizer.step()
    run = vario.open_run(monitor.path)
    assert run.targets("spectrum") == ["down:spectral_norm", "down:stable_rank"]
    assert run.series("down:stable_rank", "spectrum", "mean").steps.tolist() == [0, 2, 4]


def test_several_optimizers_make_one_measurement():
    model = Perceptron(dropout=0.0)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.up, model.down)]
    before = expected(model)
    with watch(model, optimizers, ["spectrum"]) as monitor:
        model(batch(0)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    check_step(rows(monitor), 0, before)


def test_updates_in_a_closure_or_by_hand_are_measured_before_they_happen():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    before = expected(model)

    def closure():
        optimizer.zero_grad()
        loss = model(batch(0)).square().mean()
        loss.backward()
        return loss

    with watch(model, optimizer, ["spectrum"]) as monitor:
        optimizer.step(closure)
    check_step(rows(monitor), 0, before)

    before = expected(model)
    with watch(model, None, ["spectrum"]) as monitor:
        closure()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= parameter.grad
        monitor.step()
    check_step(rows(monitor), 0, before)


def test_training_is_not_changed_by_measuring():
    results = []
    for watched in (True, False):
        torch.manual_seed(0)
        model = Perceptron(dropout=0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = watch(model, optimizer, ["spectrum"]) if watched else None
        for step in range(3):
            model(batch(step)).square().mean().backward()
            optimizer.step()
        if monitor is not None:
            monitor.close()
        results.append(model.state_dict())
    for name, tensor in results[1].items():
        assert torch.equal(results[0][name], tensor), name
