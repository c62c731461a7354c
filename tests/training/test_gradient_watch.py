"""What is seen at every step of a regular loop on the host: single gradients, and what is written between updates."""

import copy

import numpy as np
import pytest
import torch

import vario
from vario.backends.torch.optimizer.state_samples import StateSamples
from vario.backends.torch.optimizer.weight_glance import WeightGlance
from vario.training.gradient_watch import KNOWN, LASTING, GradientWatch

STEPS, BEGINS = 330, 240


def train(tmp_path, change, steps=STEPS, lr=1e-3):
    """Train a deep network; `change(step, model, optimizer)` runs before each step. Return its run."""
    torch.manual_seed(0)
    layers = []
    for number in range(4):
        layers += [torch.nn.Linear(32 if number else 16, 32), torch.nn.GELU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    target = torch.randn(16, 1)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(steps):
            inputs = torch.randn(64, 16)
            change(step, model, optimizer)
            loss = (model(inputs) - (inputs @ target).tanh()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert not vario.open_run(monitor.path).parts_off
    return vario.open_run(monitor.path)


def nothing(step, model, optimizer):
    pass


def cut(step, model, optimizer):
    if step == BEGINS:
        model[2].register_forward_hook(lambda module, args, output: output.detach())


def overwritten(step, model, optimizer):
    if step == BEGINS:
        with torch.no_grad():
            model[4].weight.zero_()


def loaded(step, model, optimizer):
    """One layer is taken from an earlier copy of the model."""
    if step == 100:
        loaded.copy = copy.deepcopy(model[4].state_dict())
    if step == BEGINS:
        model[4].load_state_dict(loaded.copy)


def without_a_rate(step, model, optimizer):
    """The rate is zero while the optimizer updates, and only then."""

    def take(optimizer, *_):
        optimizer.param_groups[0]["lr"] = 0.0

    def give_back(optimizer, *_):
        optimizer.param_groups[0]["lr"] = 1e-3

    if step == BEGINS:
        optimizer.register_step_pre_hook(take)
        optimizer.register_step_post_hook(give_back)


def found(run, rule):
    return [alert for alert in run.alerts if alert.rule == rule]


def test_a_healthy_loop_is_silent(tmp_path):
    run = train(tmp_path, nothing)
    assert not run.incidents


def test_a_gradient_that_vanishes_is_named_with_its_step(tmp_path):
    run = train(tmp_path, cut)
    # The second, if the budget has just had gradients recorded in each step.
    alerts = [*found(run, "gradient_change"), *found(run, "zero_grad")]
    assert alerts
    assert {alert.target for alert in alerts} <= {"0.weight", "0.bias", "2.bias", "2.weight"}
    assert alerts[0].target in ("2.bias", "2.weight")
    assert BEGINS <= min(alert.step for alert in alerts) <= BEGINS + 4 * LASTING[1] + 4


@pytest.mark.parametrize("change", [overwritten, loaded])
def test_a_weight_that_is_written_once_is_named_at_that_step(tmp_path, change):
    run = train(tmp_path, change)
    alerts = [alert for alert in found(run, "unexplained_change") if alert.step == BEGINS]
    assert {alert.target for alert in alerts} <= {"4.weight", "4.bias"}
    assert "4.weight" in {alert.target for alert in alerts}


def test_updates_that_change_nothing_are_told(tmp_path):
    run = train(tmp_path, without_a_rate)
    (alert,) = found(run, "weights_still")
    assert alert.began == BEGINS
    assert alert.severity == "warn"


NAMES = [f"layers.{number}.weight" for number in range(8)]


def looks(watch, noise, num, factor=None):
    """Looks at lognormal norms that move together, some of them times a factor."""
    said = {}
    for _ in range(num):
        norms = np.exp(noise.normal(0, 0.3) + noise.normal(0, 0.1, len(NAMES)))
        said |= watch.look(NAMES, norms if factor is None else norms * factor)
    return said


def test_norms_that_move_together_are_no_change():
    watch, noise = GradientWatch(), np.random.default_rng(0)
    assert not looks(watch, noise, 500)
    assert not looks(watch, noise, 50, np.full(len(NAMES), 30.0))


@pytest.mark.parametrize("ratio", [20.0, 0.05])
def test_a_norm_that_leaves_the_others_is_told_once(ratio):
    watch, noise = GradientWatch(), np.random.default_rng(0)
    factor = np.ones(len(NAMES))
    factor[3] = ratio
    assert not looks(watch, noise, 2 * KNOWN)
    said = looks(watch, noise, 200, factor)
    assert list(said) == [NAMES[3]]
    assert said[NAMES[3]] == pytest.approx(ratio, rel=0.5)


def test_a_norm_that_was_zero_before_may_be_zero_again():
    watch, noise = GradientWatch(), np.random.default_rng(0)
    said = {}
    for step in range(400):
        norms = np.exp(noise.normal(0, 0.1, len(NAMES)))
        norms[2] *= step % 20 > 5
        said |= watch.look(NAMES, norms)
    assert not said


def test_a_norm_that_stands_still_is_told():
    watch, noise = GradientWatch(), np.random.default_rng(0)
    looks(watch, noise, 2 * KNOWN)
    said = {}
    for _ in range(20):
        norms = np.exp(noise.normal(0, 0.1, len(NAMES)))
        norms[5] = 1.25
        said |= watch.look(NAMES, norms)
    assert said == {NAMES[5]: 1.0}


def test_a_glance_reads_no_memory_of_weights_that_moved():
    """To other memory it follows; of another dtype or size, or on a device, there is nothing to compare."""
    weights = [torch.nn.Parameter(torch.randn(6, 6)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights)
    glance = WeightGlance(["a", "b", "c"], weights, StateSamples([], 1))
    glance.update_called(optimizer)
    glance.update_returned(optimizer)
    weights[1].data = weights[1].data.clone()
    assert glance.update_called(optimizer) == []
    glance.update_returned(optimizer)
    with torch.no_grad():
        weights[1].mul_(2)
    ((changed, most),) = glance.update_called(optimizer)
    assert changed()[0] == ["b"]
    assert most == 3
    glance.update_returned(optimizer)
    for other in (weights[0].data.half(), torch.randn(2, 2)):
        weights[0].data = other
        assert glance.update_called(optimizer) == []
        glance.update_returned(optimizer)
        assert glance.update_called(optimizer) == []


def swapped(step, model, optimizer):
    """Two biases of one size get each other's moments."""
    if step == BEGINS:
        one, other = optimizer.state[model[2].bias], optimizer.state[model[4].bias]
        one["exp_avg"], other["exp_avg"] = other["exp_avg"], one["exp_avg"]


def cleared(step, model, optimizer):
    if step == BEGINS:
        for state in optimizer.state.values():
            state["exp_avg_sq"].zero_()


def gone_back(step, model, optimizer):
    """Model and optimizer are what they were a hundred steps ago."""
    if step == 100:
        gone_back.kept = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    if step == BEGINS:
        model.load_state_dict(gone_back.kept[0])
        optimizer.load_state_dict(gone_back.kept[1])


def moved_away_and_back(step, model, optimizer):
    """The state is replaced by equal tensors in each step, as by a loop that keeps it elsewhere."""
    for state in optimizer.state.values():
        for key in ("exp_avg", "exp_avg_sq"):
            state[key] = state[key].clone()


def unfrozen(step, model, optimizer):
    """The last layer joins the optimizer late."""
    if step == 0:
        optimizer.param_groups[0]["params"] = list(model.parameters())[:-2]
    if step == BEGINS:
        optimizer.add_param_group({"params": list(model.parameters())[-2:]})


def test_moments_that_are_taken_between_two_updates_are_named_at_that_step(tmp_path):
    alerts = [alert for alert in found(train(tmp_path, swapped), "state_changed") if alert.step == BEGINS]
    assert alerts
    assert alerts[0].severity == "page"
    assert {alerts[0].target, *alerts[0].others} <= {"2.bias", "4.bias"}


def test_moments_that_are_cleared_are_about_the_optimizer(tmp_path):
    (alert,) = found(train(tmp_path, cleared), "state_changed")
    assert (alert.step, alert.scope, alert.severity) == (BEGINS, "global", "warn")


@pytest.mark.parametrize("name", ["Adagrad", "Adadelta", "Adamax", "RMSprop", "Adafactor"])
def test_the_state_of_other_optimizers_is_watched_too(tmp_path, name):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", overhead=1e-6, strict=True) as monitor:
        for step in range(BEGINS + 20):
            if step == BEGINS:
                for state in optimizer.state.values():
                    for value in state.values():
                        if torch.is_tensor(value) and value.dim():
                            value.zero_()
            optimizer.zero_grad()
            model(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
    (alert,) = found(vario.open_run(monitor.path), "state_changed")
    assert (alert.step, alert.scope) == (BEGINS, "global")


def steps_forgotten(step, model, optimizer):
    if step == BEGINS:
        for state in optimizer.state.values():
            state["step"].zero_()


def test_a_count_of_updates_that_is_lost_is_told_though_the_moments_stay(tmp_path):
    (alert,) = found(train(tmp_path, steps_forgotten), "state_changed")
    assert (alert.step, alert.scope, alert.severity) == (BEGINS, "global", "warn")
    assert "set to zero" in alert.text


def test_an_earlier_checkpoint_is_a_note(tmp_path):
    alerts = found(train(tmp_path, gone_back), "state_changed")
    assert {(alert.step, alert.severity) for alert in alerts} == {(BEGINS, "note")}


@pytest.mark.parametrize("change", [moved_away_and_back, unfrozen])
def test_what_loops_do_with_state_is_silent(tmp_path, change):
    assert not found(train(tmp_path, change), "state_changed")


def test_the_gradient_that_a_frozen_parameter_keeps_is_none(tmp_path):
    """Fine-tuning in the process that trained the model before: what is frozen still holds its last gradient."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    (1000 * model(torch.ones(2, 6)).sum()).backward()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.01)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", overhead=1e-6, strict=True) as monitor:
        for _ in range(120):
            optimizer.zero_grad()
            model(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
    run = vario.open_run(monitor.path)
    assert not [alert for alert in run.alerts if alert.rule == "gradient_change"]
    assert not [name for name in run.targets("gradient") if name.startswith("0.")]
    norm, whole = run.series("gradient_norm", "scalar"), model[0].weight.grad.norm()
    assert norm.values[-1] < whole
