"""GradScaler and autocast on CPU: values unscaled, skipped steps marked."""

import copy
import gc

import pytest
import torch
from torch import nn

from models import Perceptron, batch
from watching import EVERYTHING, check, records, rows, scalar, watch

SCALE = 1024.0


def plain(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


@pytest.fixture
def scaler():
    gc.collect()
    return torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)


def own_gradients(model, step):
    twin = copy.deepcopy(model)
    twin.zero_grad()
    twin(batch(step)).square().mean().backward()
    return {name: parameter.grad for name, parameter in twin.named_parameters()}


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("make", [plain, fused])
def test_gradients_are_reported_without_the_loss_scale(make, clip, given, scaler):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = make(model)
    monitor = watch(model, optimizer, scaler=scaler if given else None)
    expected, applied = [], []
    for step in range(3):
        optimizer.zero_grad()
        expected.append(own_gradients(model, step))
        scaler.scale(model(batch(step)).square().mean()).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        factor = 1.0 if clip else SCALE
        applied.append({name: p.grad / factor for name, p in model.named_parameters()})
        scaler.step(optimizer)
        scaler.update()
    monitor.close()
    recorded = rows(monitor)
    for step in range(3):
        for name in expected[step]:
            check(recorded[step, "gradient", 0, name], expected[step][name])
            check(recorded[step, "gradient_local", 0, name], expected[step][name])
            check(recorded[step, "gradient_applied", 0, name], applied[step][name])
    assert scalar(monitor, "skipped_step") == {0: 0.0, 1: 0.0, 2: 0.0}


def test_activation_gradients_are_reported_without_the_loss_scale(scaler):
    model = Perceptron(dropout=0.0)
    optimizer = plain(model)
    monitor = watch(model, optimizer, ["activation", "activation_gradient"])
    output = model(batch(0))
    scaler.scale(output.square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    monitor.close()
    recorded = rows(monitor)
    check(recorded[0, "activation", 0, "root:output"], output)
    check(recorded[0, "activation_gradient", 0, "root:output"], 2 * output / output.numel())


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("make", [plain, fused])
def test_a_skipped_step_is_marked_and_numbering_goes_on(make, given, scaler):
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    optimizer = make(model)
    monitor = watch(model, optimizer, scaler=scaler if given else None)
    weights = []
    for step in range(4):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        scaler.scale(loss * float("inf") if step == 1 else loss).backward()
        scaler.step(optimizer)
        scaler.update()
        monitor.log(loss=step)
        weights.append(model.up.weight.detach().clone())
    monitor.close()
    recorded = rows(monitor)
    assert torch.equal(weights[0], weights[1])
    assert scalar(monitor, "skipped_step") == {0: 0.0, 1: 1.0, 2: 0.0, 3: 0.0}
    assert scalar(monitor, "loss") == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0}
    bad = recorded[1, "gradient", 0, "up.weight"]
    assert bad[5] + bad[6] > 0, "the inf that made it skip is on record"
    check(recorded[3, "weight", 0, "up.weight"], weights[3])
    check(recorded[3, "gradient", 0, "up.weight"], model.up.weight.grad)


def test_one_optimizer_skipping_is_not_hidden_by_another_that_does_not(scaler):
    models = {"a": nn.Linear(4, 1), "b": nn.Linear(4, 1)}
    optimizers = {name: plain(model) for name, model in models.items()}
    monitor = watch(models, list(optimizers.values()), ["gradient"])
    for step in range(3):
        for name, model in models.items():
            optimizers[name].zero_grad()
            loss = model(batch(step)).square().mean()
            scaler.scale(loss * float("inf") if (step, name) == (1, "a") else loss).backward()
        for optimizer in optimizers.values():
            scaler.step(optimizer)
        scaler.update()
    monitor.close()
    assert scalar(monitor, "skipped_step") == {0: 0.0, 1: 1.0, 2: 0.0}


def test_a_scaler_left_over_from_another_training_is_not_mistaken_for_ours(scaler):
    other = nn.Linear(4, 1)
    scaler.scale(other(batch(0)).mean()).backward()  # its scale exists from now on
    model = Perceptron(dropout=0.0)
    optimizer = plain(model)
    expected = own_gradients(model, 0)
    monitor = watch(model, optimizer)
    model(batch(0)).square().mean().backward()
    optimizer.step()
    monitor.close()
    recorded = rows(monitor)
    for name, gradient in expected.items():
        check(recorded[0, "gradient", 0, name], gradient)
        check(recorded[0, "gradient_local", 0, name], gradient)
    assert scalar(monitor, "skipped_step") == {}


def test_of_two_scalers_the_one_that_scaled_the_loss_counts(scaler):
    unused = torch.amp.GradScaler("cpu", init_scale=7.0)
    unused.scale(torch.ones(1))
    model = Perceptron(dropout=0.0)
    optimizer = plain(model)
    expected = own_gradients(model, 0)
    monitor = watch(model, optimizer, ["gradient"])
    scaler.scale(model(batch(0)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    monitor.close()
    for name, gradient in expected.items():
        check(rows(monitor)[0, "gradient", 0, name], gradient)
    assert scalar(monitor, "skipped_step") == {0: 0.0}


def test_a_scaler_made_after_watching_began_is_found():
    model = Perceptron(dropout=0.0)
    optimizer = plain(model)
    expected = own_gradients(model, 0)
    monitor = watch(model, optimizer, ["gradient"])
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    scaler.scale(model(batch(0)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    monitor.close()
    for name, gradient in expected.items():
        check(rows(monitor)[0, "gradient", 0, name], gradient)


def test_a_scaler_of_a_class_that_is_imported_after_watching_began_is_found():
    model = Perceptron(dropout=0.0)
    optimizer = plain(model)
    expected = own_gradients(model, 0)
    monitor = watch(model, optimizer, ["gradient"])

    class Sharded(torch.amp.GradScaler):  # as that of FSDP, which scales by itself
        def scale(self, outputs):
            self._lazy_init_scale_growth_tracker(outputs.device)
            return outputs * self._scale

    scaler = Sharded("cpu", init_scale=SCALE)
    loss = model(batch(0)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    monitor.close()
    for name, gradient in expected.items():
        check(rows(monitor)[0, "gradient", 0, name], gradient)


def test_a_scaler_that_trained_before_watching_began_is_found(scaler):
    model = Perceptron(dropout=0.0)
    optimizer = plain(model)
    scaler.scale(model(batch(9)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    expected = own_gradients(model, 0)
    monitor = watch(model, optimizer, ["gradient"])
    scaler.scale(model(batch(0)).square().mean()).backward()
    scaler.step(optimizer)
    monitor.close()
    for name, gradient in expected.items():
        check(rows(monitor)[0, "gradient", 0, name], gradient)


def test_a_disabled_scaler_changes_nothing():
    model = Perceptron(dropout=0.0)
    optimizer = plain(model)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    expected = own_gradients(model, 0)
    monitor = watch(model, optimizer, scaler=scaler)
    scaler.scale(model(batch(0)).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    monitor.close()
    for name, gradient in expected.items():
        check(rows(monitor)[0, "gradient", 0, name], gradient)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_activations_under_autocast_are_seen_in_their_own_precision(dtype, scaler):
    torch.manual_seed(0)
    model = Perceptron(width=300, dropout=0.0)
    optimizer = plain(model)
    seen = {}
    monitor = watch(model, optimizer, EVERYTHING)
    handle = model.up.register_forward_hook(lambda module, args, output: seen.update(up=output.detach().clone()))
    with torch.autocast("cpu", dtype=dtype):
        loss = model(batch(0, (200, 4))).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    handle.remove()
    monitor.close()
    assert seen["up"].dtype is dtype
    check(rows(monitor)[0, "activation", 0, "up:output"], seen["up"])
    assert len(records(monitor)) == 1


def test_the_scaler_is_left_as_it_was_found(scaler):
    before = dict(vars(scaler))
    model = Perceptron()
    optimizer = plain(model)
    for given in (scaler, None):
        monitor = watch(model, optimizer, scaler=given)
        model(batch(0)).mean().backward()
        monitor.close()
        assert vars(scaler).keys() == before.keys()
    with pytest.raises(Exception, match="matches nothing"):
        watch(model, optimizer, scaler=scaler, targets=["nothing.here"])
    watch(model, optimizer, scaler=scaler, ranks=[1])
    assert vars(scaler).keys() == before.keys()


def test_two_monitors_may_follow_one_scaler_and_close_in_any_order(scaler):
    before = dict(vars(scaler))
    models = [Perceptron(dropout=0.0) for _ in range(2)]
    optimizers = [plain(model) for model in models]
    first, second = (watch(*each, ["gradient"]) for each in zip(models, optimizers, strict=True))
    for step in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            loss = model(batch(step)).square().mean()
            scaler.scale(loss * float("inf") if step == 1 else loss).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        if step == 0:
            first.close()
    second.close()
    assert scalar(first, "skipped_step") == {0: 0.0}
    assert scalar(second, "skipped_step") == {0: 0.0, 1: 1.0, 2: 0.0}
    assert vars(scaler).keys() == before.keys()


def test_a_step_method_the_user_put_on_the_scaler_is_put_back(scaler):
    own = scaler.step
    scaler.step = own
    model = Perceptron()
    monitor = watch(model, plain(model), scaler=scaler)
    monitor.close()
    assert vars(scaler)["step"] is own
