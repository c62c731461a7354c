"""Settings that change, and gradients that nobody zeroed."""

import pytest
import torch

from models import Perceptron, batch
from watching import records, scalar, watch


def trained(steps, before=lambda step, model, optimizer: None, zero=lambda step: True, accumulate=1, **options):
    torch.manual_seed(0)
    model = Perceptron()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = watch(model, optimizer, quantities=["gradient"], **options)
    for step in range(steps):
        before(step, model, optimizer)
        for _ in range(accumulate):
            loss = model(batch(step)[0]).square().mean()
            # After the forward pass, as many loops do.
            if zero(step) and accumulate == 1:
                optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        if accumulate > 1:
            optimizer.zero_grad()
    monitor.close()
    return monitor


def logged(monitor, prefix):
    return {
        (record.step, name): value
        for record in records(monitor)
        for name, value in record.scalars.values.items()
        if name.startswith(prefix)
    }


def test_settings_are_logged_once_and_again_when_they_change():
    def before(step, model, optimizer):
        if step == 3:
            optimizer.param_groups[0]["weight_decay"] = 0.5

    found = logged(trained(6, before), "setting/")
    assert {name for step, name in found if step == 0} == {
        "setting/modules_in_eval",
        "setting/trainable_parameters",
        "setting/parameters_in_optimizer",
        "setting/weight_decay",
        "setting/eps",
        "setting/beta1",
        "setting/beta2",
    }
    assert {(step, name): value for (step, name), value in found.items() if step} == {(3, "setting/weight_decay"): 0.5}


def test_a_module_that_goes_into_evaluation_mode_is_named():
    def before(step, model, optimizer):
        if step in (2, 4):
            next(iter(model.children())).train(step == 4)

    found = logged(trained(6, before), "setting/eval:")
    first = next(name for name, _ in Perceptron().named_children())
    assert found == {(2, f"setting/eval:{first}"): 1.0, (4, f"setting/eval:{first}"): 0.0}


def test_a_parameter_that_is_new_in_the_model_is_named():
    def before(step, model, optimizer):
        if step == 5:
            model.late = torch.nn.Parameter(torch.zeros(3))

    found = logged(trained(25, before), "setting/new:")
    assert {name for _, name in found} == {"setting/new:late"}
    assert [step for step, _ in found] == [10]


def test_a_parameter_added_between_watching_and_the_first_step_is_no_news():
    def before(step, model, optimizer):
        if step == 0:
            model.late = torch.nn.Parameter(torch.zeros(3))

    assert logged(trained(25, before), "setting/new:") == {}


@pytest.mark.parametrize("accumulate", [1, 3])
def test_nothing_is_left_over_where_gradients_are_zeroed(accumulate):
    values = scalar(trained(8, accumulate=accumulate), "gradient_left_over")
    assert len(values) == 8
    assert set(values.values()) == {0.0}


def test_what_nobody_zeroed_is_seen_from_the_next_step_on():
    values = scalar(trained(8, zero=lambda step: step < 3), "gradient_left_over")
    assert [step for step, value in values.items() if value > 0] == [3, 4, 5, 6, 7]


def adversarial(zeroes_discriminator):
    """A GAN in which each model zeroes its own gradients, as in the DCGAN tutorial."""
    torch.manual_seed(0)
    generator, discriminator = (torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh()) for _ in range(2))
    optimizers = [torch.optim.Adam(model.parameters(), lr=1e-3) for model in (discriminator, generator)]
    monitor = watch({"d": discriminator, "g": generator}, optimizers, quantities=["gradient"])
    for step in range(8):
        if zeroes_discriminator or step == 0:
            discriminator.zero_grad()
        discriminator(torch.randn(4, 6)).square().mean().backward()
        optimizers[0].step()
        generator.zero_grad()
        # Through the discriminator, whose gradients nobody wants here.
        discriminator(generator(torch.randn(4, 6))).square().mean().backward()
        optimizers[1].step()
    monitor.close()
    return scalar(monitor, "gradient_left_over")


def test_what_another_update_finds_and_nobody_uses_is_not_left_over():
    assert set(adversarial(zeroes_discriminator=True).values()) == {0.0}


def test_a_model_that_is_never_zeroed_is_seen_beside_one_that_is():
    values = adversarial(zeroes_discriminator=False)
    assert all(value > 0 for step, value in values.items() if step)


def test_gradients_put_in_place_by_hand_are_not_left_over():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, quantities=["gradient"]) as monitor:
        for step in range(6):
            loss = model(batch(step)[0]).square().mean()
            slopes = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, slope in zip(model.parameters(), slopes, strict=True):
                parameter.grad = slope.clone()
            optimizer.step()
    assert set(scalar(monitor, "gradient_left_over").values()) == {0.0}


def test_a_closure_may_switch_to_training_mode_itself():
    model = Perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, quantities=["gradient"]) as monitor:
        for step in range(4):

            def closure(step=step):
                model.train()
                optimizer.zero_grad()
                loss = model(batch(step)[0]).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            model.eval()
    assert logged(monitor, "setting/eval:") == {}
