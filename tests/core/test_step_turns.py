"""Several optimizers of which vario knows some, taking turns evenly or not: every update keeps its own rows."""

import pytest
import torch
from test_clock import Pair
from torch import nn

import vario
from models import batch
from vario.core.records import SUM
from watching import check, records, rows, watch

QUANTITIES = ["gradient", "gradient_local", "gradient_accumulated", "gradient_applied", "weight", "activation"]


def check_updates(monitor, diary):
    """Each update of each parameter has one row of every kind, at one step, with the gradient that it used."""
    recorded = rows(monitor)
    for name, updates in diary.items():
        steps = [key[0] for key in recorded if key[1] == "gradient_applied" and key[3] == name]
        assert len(steps) == len(updates)
        for step, (gradient, weight) in zip(steps, updates, strict=True):
            check(recorded[step, "gradient", 0, name], gradient)
            check(recorded[step, "gradient_accumulated", 0, name], gradient)
            check(recorded[step, "weight", 0, name], weight)
            local = {key[2]: row for key, row in recorded.items() if key[::3] == (step, name) and "local" in key[1]}
            own = [number for number, row in local.items() if abs(row[SUM] - float(gradient.sum())) < 1e-5]
            assert len(own) == 1, f"step {step}: {name}"
            # At most the pass of the other optimizer beside it.
            assert set(local) <= {0, 1}


@pytest.mark.parametrize("given", ["", "g", "d", "gd"])
@pytest.mark.parametrize("order", ["gd", "dg", "ddg", "gddd", "gggd"])
def test_every_update_keeps_its_own_rows_whichever_optimizers_are_given(order, given):
    pair = Pair()
    monitor = watch(pair.models, [pair.optimizers[which] for which in given] or None, QUANTITIES)
    for _ in range(4):
        for which in order:
            pair.update(which)
    monitor.close()
    check_updates(monitor, pair.diary)


@pytest.mark.parametrize("given", ["none", "first", "both"])
@pytest.mark.parametrize("clips", [False, True])
def test_two_optimizers_of_one_backward_have_their_gradients_from_the_first_step_on(given, clips):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    first, second = (torch.optim.Adam(layer.parameters()) for layer in model)
    monitor = watch(model, {"none": None, "first": [first], "both": [first, second]}[given], QUANTITIES)
    expected = []
    for step in range(3):
        model(batch(step)).square().mean().backward()
        expected.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        first.step()
        if clips:
            nn.utils.clip_grad_norm_(model[1].parameters(), 1e-3)
        second.step()
        first.zero_grad()
        second.zero_grad()
    monitor.close()
    recorded = rows(monitor, "gradient")
    assert sorted(recorded) == sorted((step, "gradient", 0, name) for step in range(3) for name in expected[step])
    for (step, _, _, name), row in recorded.items():
        check(row, expected[step][name])


def test_an_optimizer_made_in_the_middle_of_a_step_has_its_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizers = [torch.optim.Adam(model[0].parameters())]
    monitor = watch(model, None, QUANTITIES)
    expected = []
    for step in range(4):
        model(batch(step)).square().mean().backward()
        expected.append({name: parameter.grad.clone() for name, parameter in model.named_parameters()})
        if step == 1:
            optimizers.append(torch.optim.Adam(model[1].parameters()))
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
    monitor.close()
    recorded = rows(monitor, "gradient")
    for step in range(4):
        names = {name for at, _, _, name in recorded if at == step}
        assert names == {name for name in expected[step] if step or name.startswith("0.")}
        for name in names:
            check(recorded[step, "gradient", 0, name], expected[step][name])
    # What nobody updates has no gradient of the step.
    assert len({record.step for record in records(monitor)}) == 4


def test_activations_of_uneven_turns_are_of_the_step_whose_update_they_led_to():
    pair = Pair()
    monitor = watch(pair.models, list(pair.optimizers.values()), ["activation", "gradient_applied"])
    for which in "dddg" * 3:
        pair.update(which)
    monitor.close()
    recorded = rows(monitor)
    for step in sorted({key[0] for key in recorded}):
        updated = {key[3][0] for key in recorded if key[0] == step and key[1] == "gradient_applied"}
        passes = {key[2] for key in recorded if key[0] == step and key[1] == "activation" and key[3] == "d.root:output"}
        assert len(passes) == len(updated), f"step {step}: {passes} of {updated}"


@pytest.mark.parametrize("num_steps", [20, 23, 26, 35, 44])
def test_optimizers_that_update_inside_backward_share_its_step(tmp_path, num_steps):
    """Each parameter has an optimizer, called as soon as its gradient is there; at the end nothing is left over."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizers = {each: torch.optim.SGD([each], lr=0.01) for each in model.parameters()}

    def update(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    # In steps that do not record gradients, their norm is logged when the backward pass has ended.
    with vario.watch(model, list(optimizers.values()), directory=tmp_path, overhead=1e-6, strict=True) as monitor:
        for _ in range(num_steps):
            model(torch.randn(8, 4)).square().mean().backward()
    run = vario.open_run(monitor.path)
    assert run.last_step == num_steps - 1
    assert len(run.series("loss_backward", "scalar").steps) == num_steps
