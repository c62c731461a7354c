"""Short steps of a regular loop are told by plain numbers alone, and whatever is not regular ends that."""

import math

import pytest
import torch

import vario
from vario.probes.tensors.gradients import Gradients
from vario.training.monitor import Monitor

STEPS = 300


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def model_of(kind, device="cpu"):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).to(device)
    return model, kind(model.parameters())


def batches(num=STEPS):
    made = torch.Generator().manual_seed(1)
    return [torch.randn(4, 8, generator=made) for _ in range(num)]


def loss_of(model, inputs):
    return (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()


class Seen:
    """Which steps were light."""

    def __init__(self, monitor):
        self.monitor, self.steps = monitor, {}

    def note(self):
        self.steps[self.monitor.step_number] = self.monitor._backend.is_light

    @property
    def light(self):
        return [step for step, is_light in self.steps.items() if is_light]


def train(tmp_path, name, body, steps=STEPS, kind=lambda p: torch.optim.AdamW(p, lr=0.01), device="cpu", **options):
    """Train with `body(step, inputs, model, optimizer)`; return the run, the losses, the weights and what was light."""
    model, optimizer = model_of(kind, device)
    losses = []
    with vario.watch(model, optimizer, directory=tmp_path, name=name, strict=True, **options) as monitor:
        seen = Seen(monitor)
        for step, inputs in enumerate(batches(steps)):
            losses.append(body(step, inputs.to(device), model, optimizer))
            seen.note()
    return vario.open_run(tmp_path / name), losses, [one.detach().clone() for one in model.parameters()], seen


def plain(step, inputs, model, optimizer):
    loss = loss_of(model, inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


TIGHT = {"overhead": 1e-6}
"""No budget but the tenth of a millisecond that a step may always cost."""
FULL = {"overhead": "off", "every": 1, "quantities": ["gradient"], "rules": False}
"""Every step whole, and every gradient recorded."""


def test_light_steps_tell_the_numbers_of_others(tmp_path):
    light, losses, weights, seen = train(tmp_path, "light", plain, **TIGHT)
    full, expected, expected_weights, never = train(tmp_path, "full", plain, **FULL)
    assert len(seen.light) > STEPS / 4
    assert not never.light
    assert losses == expected
    assert all(map(torch.equal, weights, expected_weights))
    for name in ("loss_backward", "lr", "step_seconds"):
        assert list(light.series(name, "scalar").steps) == list(range(STEPS))
    assert list(light.series("loss_backward", "scalar").values) == losses
    norms = light.series("gradient_norm", "scalar").values
    assert norms == pytest.approx(_norms(full), rel=1e-5)


@pytest.mark.gpu
@on_a_gpu
def test_light_steps_on_a_device_tell_the_numbers_of_others(tmp_path):
    light, losses, weights, seen = train(tmp_path, "light", plain, device="cuda", **TIGHT)
    full, expected, expected_weights, never = train(tmp_path, "full", plain, device="cuda", **FULL)
    assert len(seen.light) > STEPS / 4
    assert not never.light
    assert losses == expected
    assert all(map(torch.equal, weights, expected_weights))
    for name in ("loss_backward", "lr", "gradient_norm"):
        assert list(light.series(name, "scalar").steps) == list(range(STEPS))
    assert list(light.series("loss_backward", "scalar").values) == losses
    assert light.series("gradient_norm", "scalar").values == pytest.approx(_norms(full), rel=1e-5)


@pytest.mark.gpu
@on_a_gpu
def test_light_steps_do_not_wait_for_the_device(tmp_path):
    model, optimizer = model_of(lambda p: torch.optim.AdamW(p, lr=0.01, fused=True))
    inputs = torch.randn(4, 8, device="cuda")
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True, **TIGHT) as monitor:
        model.cuda()  # a model may move after it is watched
        seen = Seen(monitor)
        for step in range(200):
            torch.cuda.set_sync_debug_mode("error" if step > 100 else "default")
            try:
                loss_of(model, inputs).backward()
                optimizer.step()
                optimizer.zero_grad()
            finally:
                torch.cuda.set_sync_debug_mode("default")
            seen.note()
    assert any(step > 100 for step in seen.light)
    run = vario.open_run(tmp_path / "run")
    assert list(run.series("gradient_norm", "scalar").steps) == list(range(200))


@pytest.mark.gpu
@on_a_gpu
def test_a_gradient_that_breaks_on_a_device_is_recorded(tmp_path):
    broken = 250

    def body(step, inputs, model, optimizer):
        loss = loss_of(model, inputs) * (math.inf if step == broken else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    run, _, _, seen = train(tmp_path, "nan", body, device="cuda", **TIGHT)
    assert seen.light
    assert broken in list(run.series("0.weight", "gradient", "norm").steps)
    assert vario.first_bad(run).step == broken


def _norms(run):
    names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    each = [run.series(name, "gradient", "norm").values for name in names]
    return [math.sqrt(sum(value**2 for value in values)) for values in zip(*each, strict=True)]


def test_a_schedule_is_seen_in_every_step(tmp_path):
    def decaying(step, inputs, model, optimizer):
        optimizer.param_groups[0]["lr"] = 0.01 * 0.999**step
        return plain(step, inputs, model, optimizer)

    run, _, _, seen = train(tmp_path, "lr", decaying, **TIGHT)
    assert seen.light
    assert run.series("lr", "scalar").values == pytest.approx([0.01 * 0.999**step for step in range(STEPS)])


def accumulating(step, inputs, model, optimizer):
    optimizer.zero_grad()
    total = 0.0
    for part in inputs.chunk(2):
        loss = loss_of(model, part) / 2
        loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def contrasting(step, inputs, model, optimizer):
    loss = (model(inputs) - model(inputs + 0.1)).square().mean() + loss_of(model, inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def called_unevenly(step, inputs, model, optimizer):
    loss = sum(loss_of(model, inputs + number) for number in range(1 + step % 3))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def starting_anew(step, inputs, model, optimizer):
    """Only the second backward pass counts."""
    loss_of(model, inputs).backward()
    optimizer.zero_grad()
    loss = loss_of(model, inputs + 0.1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def with_short_ends(step, inputs, model, optimizer):
    """Each epoch of 40 steps ends with one micro-step."""
    return (plain if step % 40 == 39 else accumulating)(step, inputs, model, optimizer)


@pytest.mark.parametrize("body", [accumulating, contrasting, called_unevenly, starting_anew, with_short_ends])
def test_loops_of_several_passes_have_light_steps(tmp_path, body):
    light, losses, weights, seen = train(tmp_path, "light", body, **TIGHT)
    full, expected, expected_weights, never = train(tmp_path, "full", body, **FULL)
    assert len(seen.light) > STEPS / 4
    assert not never.light
    assert losses == expected
    assert all(map(torch.equal, weights, expected_weights))
    for name in ("loss_backward", "gradient_norm"):
        assert list(light.series(name, "scalar").steps) == list(range(STEPS))
    values = light.series("loss_backward", "scalar").values
    assert list(values) == list(full.series("loss_backward", "scalar").values)
    assert values == pytest.approx(losses, rel=1e-5)
    assert light.series("gradient_norm", "scalar").values == pytest.approx(_norms(full), rel=1e-5)


def with_a_second_look(step, inputs, model, optimizer):
    loss = plain(step, inputs, model, optimizer)
    model(inputs)  # gradients are on, and nothing comes of it
    return loss


def with_an_evaluation(step, inputs, model, optimizer):
    loss = plain(step, inputs, model, optimizer)
    model.eval()
    with torch.no_grad():
        model(inputs)
    model.train()
    return loss


def with_a_failure(step, inputs, model, optimizer):
    loss = loss_of(model, inputs)
    handle = loss.register_hook(lambda gradient: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    handle.remove()
    return plain(step, inputs, model, optimizer)


def with_a_closure(step, inputs, model, optimizer):
    found = []

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model, inputs)
        loss.backward()
        found.append(loss.item())
        return loss

    optimizer.step(closure)
    return found[0]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, on_a_gpu])])
@pytest.mark.parametrize("odd", [accumulating, with_a_second_look, with_an_evaluation, with_a_failure, with_a_closure])
def test_what_is_not_regular_is_followed(tmp_path, odd, device):
    def body(step, inputs, model, optimizer):
        return (odd if step % 50 == 49 else plain)(step, inputs, model, optimizer)

    light, losses, _, seen = train(tmp_path, "light", body, device=device, **TIGHT)
    full, expected, _, _ = train(tmp_path, "full", body, device=device, **FULL)
    assert seen.light
    assert losses == expected
    assert light.last_step == full.last_step
    found, whole = light.series("loss_backward", "scalar"), full.series("loss_backward", "scalar")
    assert list(found.steps) == list(whole.steps)
    assert found.values == pytest.approx(whole.values)


def test_a_gradient_that_breaks_is_recorded_at_once(tmp_path):
    broken = 250

    def body(step, inputs, model, optimizer):
        loss = loss_of(model, inputs) * (math.nan if step == broken else 1.0)
        optimizer.zero_grad()
        loss.backward()
        if step != broken:
            optimizer.step()
        else:
            optimizer.zero_grad()
            loss_of(model, inputs).backward()
            optimizer.step()
        return loss.item()

    run, _, _, seen = train(tmp_path, "nan", body, **TIGHT)
    assert seen.light
    assert not seen.steps[broken]
    gradients = run.series("0.weight", "gradient", "norm")
    assert broken in list(gradients.steps) or broken + 1 in list(gradients.steps)
    first = vario.first_bad(run)
    assert first is not None
    assert first.step == broken


def test_another_optimizer_ends_regularity(tmp_path):
    others = []

    def body(step, inputs, model, optimizer):
        if step == 200:
            others.append(torch.optim.SGD(model.parameters(), lr=0.001))
        return plain(step, inputs, model, others[0] if others else optimizer)

    run, losses, _, seen = train(tmp_path, "other", body, **TIGHT)
    assert run.last_step == STEPS - 1
    rates = dict(zip(run.series("lr", "scalar").steps, run.series("lr", "scalar").values, strict=True))
    assert rates[199] == pytest.approx(0.01)
    assert rates[200] == pytest.approx(0.001)
    assert list(run.series("loss_backward", "scalar").values) == losses
    assert any(step > 210 for step in seen.light)


def test_weights_changed_between_light_steps_do_not_count_as_updates(tmp_path):
    """Samples of an earlier step are not compared with those after further updates."""
    run, _, _, seen = train(tmp_path, "samples", plain, **TIGHT)
    assert seen.light
    assert not [alert for alert in run.alerts if alert.rule == "unexplained_change"]


class Counting:
    """A probe of another package, which wants to hear of every update."""

    quantity = "scalar"
    every = 1

    def attach(self, backend, recorder):
        self.num = 0

        def count(optimizer):
            self.num += 1

        backend.on_update_ended(recorder.guarded("counting", count))


def test_a_probe_that_needs_every_event_gets_them(tmp_path):
    probe = Counting()
    model, optimizer = model_of(lambda p: torch.optim.AdamW(p, lr=0.01))
    config = vario.Config(directory=str(tmp_path), **TIGHT)
    with Monitor(model, optimizer, config, probes=[probe]) as monitor:
        seen = Seen(monitor)
        for step, inputs in enumerate(batches()):
            plain(step, inputs, model, optimizer)
            seen.note()
    assert probe.num == STEPS
    assert not seen.light


def test_a_quantity_of_every_step_keeps_steps_whole(tmp_path):
    run, _, _, seen = train(tmp_path, "gradients", plain, every={Gradients.quantity: 1}, **TIGHT)
    assert not seen.light
    assert len(run.series("0.weight", "gradient", "norm").steps) == STEPS
