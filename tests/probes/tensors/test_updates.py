"""What updates do to weights, against the same numbers worked out by hand in float64."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from updates_by_hand import ADAMS, BETA2, EPS, OF_ADAM, OF_ALL, Hand

import vario
from models import Language, Partial, Perceptron, batch, ids, language_loss
from vario.backends.torch.optimizer.element_samples import MAX_SAMPLE, stride_over
from vario.core.records import COUNT, MAX, MIN, NANS, SUM, ZEROS
from watching import records, rows, watch


def trained(model, optimizer, hand, steps=4, micro_steps=1, **options):
    with watch(model, optimizer, ["update", "unexpected_change"], **options) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            for micro_step in range(micro_steps):
                model(batch(10 * step + micro_step)).square().mean().backward()
            hand.before()
            optimizer.step()
            hand.after()
    assert not rows(monitor, "unexpected_change")
    return monitor


@pytest.mark.parametrize("make", ADAMS.values(), ids=ADAMS.keys())
def test_an_update_of_adam_is_what_float64_says(make):
    model = Perceptron(dropout=0.0)
    hand = Hand(model, lambda name: 0.01)
    hand.check(trained(model, make(model.parameters()), hand), OF_ADAM)


def test_a_column_whose_gradient_lies_in_memory_another_way_is_read():
    model = nn.Sequential(nn.Linear(1, 20), nn.Tanh(), nn.Linear(20, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for _ in range(3):
            x = torch.linspace(0, 1, 8).unsqueeze(1).requires_grad_()
            out = model(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            optimizer.zero_grad()
            (slope + out).square().mean().backward()
            # As a transposed product leaves it.
            model[0].weight.grad = model[0].weight.grad.clone().as_strided((20, 1), (1, 20))
            optimizer.step()
    assert {key[3] for key in rows(monitor, "update")} >= {"0.weight:change", "0.weight:grad_vs_second_moment"}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_an_update_without_second_moments_has_no_rows_of_them(momentum):
    model = Perceptron(dropout=0.0)
    hand = Hand(model, lambda name: 0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, weight_decay=0.01)
    hand.check(trained(model, optimizer, hand), OF_ALL)


def test_groups_have_rates_of_their_own_and_none_of_zero_gives_a_pace():
    model = Perceptron(dropout=0.0)
    rates = {"up.weight": 0.1, "up.bias": 0.1, "down.weight": 0.0, "down.bias": 0.0}
    hand = Hand(model, rates.get)
    groups = [{"params": model.up.parameters()}, {"params": model.down.parameters(), "lr": 0.0}]
    monitor = trained(model, torch.optim.SGD(groups, lr=0.1), hand)
    hand.check(monitor, OF_ALL)
    assert rows(monitor, "update")[0, "update", 0, "down.weight:change"][ZEROS] == 24


def test_weights_that_are_all_zero_have_a_change_and_no_ratio():
    model = Perceptron(dropout=0.0)
    nn.init.zeros_(model.down.bias)
    hand = Hand(model, lambda name: 0.1)
    monitor = trained(model, torch.optim.SGD(model.parameters(), lr=0.1), hand)
    hand.check(monitor, OF_ALL)
    of_first = {key[3] for key in rows(monitor, "update") if key[0] == 0 and key[3].startswith("down.bias")}
    assert of_first == {"down.bias:change"}


def test_accumulated_gradients_are_compared_as_the_optimizer_gets_them():
    model = Perceptron(dropout=0.0)
    hand = Hand(model, lambda name: 0.01)
    hand.check(trained(model, ADAMS["adamw"](model.parameters()), hand, micro_steps=3), OF_ADAM)


@pytest.mark.parametrize("is_fused", [False, True])
def test_an_update_that_a_scaler_skips_has_no_rows_and_changes_nothing_by_stealth(is_fused):
    model = Perceptron(dropout=0.0)
    hand = Hand(model, lambda name: 0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, BETA2), eps=EPS, fused=is_fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, optimizer, ["update", "unexpected_change"], scaler=scaler) as monitor:
        for step in range(5):
            optimizer.zero_grad()
            loss = model(batch(step)).square().mean()
            scaler.scale(loss * float("inf") if step == 2 else loss).backward()
            scale = scaler.get_scale()
            gradients = {name: p.grad.double() / scale for name, p in model.named_parameters()}
            hand.before()
            scaler.step(optimizer)
            scaler.update()
            if step == 2:
                hand.steps.append({})
            else:
                hand.after(gradients)
    hand.check(monitor, OF_ADAM)
    assert not rows(monitor, "unexpected_change")


def test_a_closure_is_a_part_of_the_update():
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    hand = Hand(model, lambda name: 0.5)
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for step in range(3):

            def closure(step=step):
                optimizer.zero_grad()
                loss = model(batch(step)).square().mean()
                loss.backward()
                return loss

            hand.before()
            optimizer.step(closure)
            hand.after()
    hand.check(monitor, OF_ALL)
    assert not rows(monitor, "unexpected_change")


def test_gradients_that_come_inside_a_closure_are_the_ones_that_surprise():
    model = Perceptron(dropout=0.0)
    optimizer = ADAMS["adamw"](model.parameters())
    hand = Hand(model, lambda name: 0.01)
    with watch(model, optimizer, ["update"]) as monitor:
        for step in range(3):

            def closure(step=step):
                optimizer.zero_grad()
                loss = model(batch(step)).square().mean()
                loss.backward()
                return loss

            hand.before()
            optimizer.step(closure)
            hand.after()
    hand.check(monitor, OF_ADAM)


def test_frozen_and_unused_parameters_have_no_rows():
    model = Partial()
    hand = Hand(model, lambda name: 0.01)
    monitor = trained(model, ADAMS["adamw"](model.parameters()), hand)
    hand.check(monitor, OF_ADAM)
    assert {key[3].split(".")[0] for key in rows(monitor, "update")} == {"used"}


def test_two_optimizers_each_have_the_rows_of_their_parameters():
    model = Perceptron(dropout=0.0)
    optimizers = [ADAMS["adamw"](model.up.parameters()), ADAMS["fused"](model.down.parameters())]
    hand = Hand(model, lambda name: 0.01)
    with watch(model, optimizers, ["update", "unexpected_change"]) as monitor:
        for step in range(3):
            model.zero_grad()
            model(batch(step)).square().mean().backward()
            hand.before()
            for optimizer in optimizers:
                optimizer.step()
            hand.after()
    hand.check(monitor, OF_ADAM)
    assert not rows(monitor, "unexpected_change")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_read_as_they_are(dtype):
    model = Perceptron(dropout=0.0).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hand = Hand(model, lambda name: 0.1)
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step).to(dtype)).square().mean().backward()
            hand.before()
            optimizer.step()
            hand.after()
    hand.check(monitor, OF_ALL, rtol=1e-5 if dtype is torch.bfloat16 else 1e-12)
    assert not rows(monitor, "unexpected_change")


def test_parameters_in_two_precisions_stand_beside_each_other():
    model = nn.ModuleDict({"short": nn.Linear(4, 4).bfloat16(), "long": nn.Linear(4, 3), "again": nn.Linear(3, 2)})
    model["again"].bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    hand = Hand(model, lambda name: 0.01)
    with watch(model, optimizer, ["update"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            output = model["long"](model["short"](batch(step).bfloat16()).float())
            model["again"](output.bfloat16()).square().mean().backward()
            hand.before()
            optimizer.step()
            hand.after()
    hand.check(monitor, OF_ALL)


def test_a_tied_weight_is_measured_once():
    model = Language(tied=True)
    optimizer = ADAMS["adamw"](model.parameters())
    hand = Hand(model, lambda name: 0.01)
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            language_loss(model, ids(step)).backward()
            hand.before()
            optimizer.step()
            hand.after()
    hand.check(monitor, OF_ADAM)
    assert not rows(monitor, "unexpected_change")


@pytest.mark.filterwarnings("ignore")  # what inductor and dynamo warn of is theirs
def test_a_compiled_model_has_the_rows_of_eager_code():
    torch._dynamo.reset()
    model = Perceptron(dropout=0.0)
    model.compile(backend="aot_eager")
    hand = Hand(model, lambda name: 0.01)
    hand.check(trained(model, ADAMS["adamw"](model.parameters()), hand), OF_ADAM)
    torch._dynamo.reset()


class Layouts(nn.Module):
    """Weights and gradients that lie in memory in different ways."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)
        self.turned = nn.Parameter(torch.randn(5, 4).t())
        self.cut = nn.Parameter(torch.randn(6, 8)[:, 2:7])
        self.plain = nn.Parameter(torch.randn(7, 3))

    def forward(self, x):
        # The gradient of a sum is one number, spread over the whole shape.
        return self.conv(x).square().mean() + self.turned.square().sum() + self.cut.sin().sum() + self.plain.sum()


@pytest.mark.parametrize("is_sampled", [False, True])
def test_weights_gradients_and_moments_are_read_at_the_same_places_however_they_lie(is_sampled, monkeypatch):
    if is_sampled:
        monkeypatch.setattr("vario.backends.torch.optimizer.element_samples.LEAST_SAMPLE", 1)
        monkeypatch.setattr("vario.backends.torch.optimizer.element_samples.MAX_SAMPLE", 7)
    torch.manual_seed(0)
    model = Layouts()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape))
    optimizer = ADAMS["adamw"](model.parameters())
    hand = Hand(model, lambda name: 0.01)
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step, (2, 4, 5, 5))).backward()
            hand.before()
            optimizer.step()
            hand.after()
    assert not rows(monitor, "unexpected_change")
    if not is_sampled:
        hand.check(monitor, OF_ADAM)
        return
    # Of a sample the extremes are elements of the whole, and g²/v only comes out right at matching places.
    found = rows(monitor, "update")
    for step in (1, 2):
        for name, parameter in model.named_parameters():
            whole = hand.steps[step][f"{name}:grad_vs_second_moment"].reshape(-1).numpy()
            row = found[step, "update", 0, f"{name}:grad_vs_second_moment"]
            assert 3 <= row[COUNT] <= min(7, parameter.numel())
            for extreme in (row[MIN], row[MAX]):
                assert np.isclose(whole, extreme, rtol=1e-4).any()


SHAPES = [(4096, 4096), (2048, 2048), (50257, 768), (3072, 768), (64, 3, 7, 7), (512, 512, 3, 3), (10007,), (8192,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sample_is_spread_over_rows_and_columns(shape):
    size = int(np.prod(shape))
    row_length = shape[-1] if len(shape) > 1 else 0
    places = np.arange(0, size, stride_over(size, row_length))
    assert MAX_SAMPLE / 3 <= len(places) <= MAX_SAMPLE
    assert places[-1] > 0.99 * size
    if len(shape) == 2:
        at_row, at_column = np.divmod(places, row_length)
        assert len(np.unique(at_column)) > 0.5 * min(row_length, len(places))
        assert len(np.unique(at_row)) > 0.5 * min(shape[0], len(places))
        assert np.mean(at_row == at_column) < 0.02


def test_a_large_parameter_is_sampled_at_the_same_places_each_time():
    torch.manual_seed(0)
    model = nn.Linear(300, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, ["update"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step, (4, 300))).square().mean().backward()
            optimizer.step()
    found = rows(monitor, "update")
    counts = {found[step, "update", 0, "weight:change"][COUNT] for step in range(3)}
    assert len(counts) == 1
    assert 1000 < counts.pop() <= MAX_SAMPLE
    assert found[0, "update", 0, "bias:change"][COUNT] == 100


def test_many_parameters_share_the_room(monkeypatch):
    monkeypatch.setattr("vario.backends.torch.optimizer.element_samples.LEAST_SAMPLE", 1)
    monkeypatch.setattr("vario.backends.torch.optimizer.element_samples.MAX_HOST_MATRIX", 40)
    model = Perceptron(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = trained(model, optimizer, Hand(model, lambda name: 0.1), steps=1)
    assert {key[3]: row[COUNT] for key, row in rows(monitor, "update").items() if key[3].endswith("change")} == {
        "up.weight:change": 7,
        "up.bias:change": 8,
        "down.weight:change": 5,
        "down.bias:change": 3,
    }


def test_what_is_not_finite_is_told():
    model = Perceptron(dropout=0.0)
    optimizer = ADAMS["adamw"](model.parameters())
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            if step == 1:
                model.up.bias.grad[3] = torch.nan
            optimizer.step()
    found = rows(monitor, "update")
    assert found[1, "update", 0, "up.bias:grad_vs_second_moment"][NANS] == 1
    assert found[1, "update", 0, "up.bias:change"][NANS] == 1
    assert found[1, "update", 0, "up.bias:ratio"][NANS] == 1
    assert found[1, "update", 0, "down.bias:change"][NANS] == 0
    # The weight stays NaN from then on, and that nobody changed.
    assert not rows(monitor, "unexpected_change")


def test_chosen_targets_and_steps_are_kept_to():
    model = Perceptron(dropout=0.0)
    optimizer = ADAMS["adamw"](model.parameters())
    monitor = trained(model, optimizer, Hand(model, lambda name: 0), steps=5, targets=["up"], every={"update": 2})
    assert {key[0] for key in rows(monitor, "update")} == {0, 2, 4}
    assert {key[3].split(":")[0] for key in rows(monitor, "update")} == {"up.weight", "up.bias"}


def test_restored_optimizers_are_followed_with_their_new_rates():
    model = Perceptron(dropout=0.0)
    optimizer = ADAMS["adamw"](model.parameters())
    with watch(model, optimizer, ["update", "unexpected_change"]) as monitor:
        for step in range(4):
            if step == 2:
                state = optimizer.state_dict()
                state["param_groups"][0]["lr"] = 0.5
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            model(batch(step)).square().mean().backward()
            optimizer.step()
    found = rows(monitor, "update")
    for step, rate in enumerate((0.01, 0.01, 0.5, 0.5)):
        ratio, pace = (found[step, "update", 0, f"up.weight:{kind}"][SUM] for kind in ("ratio", "pace"))
        assert ratio / pace == pytest.approx(rate)


def made(seed=0):
    torch.manual_seed(seed)
    model = Perceptron(dropout=0.25)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def losses_of(model, optimizer):
    losses = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model(batch(step)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_losses_and_weights_are_the_same_bits_with_and_without():
    bare = made()
    expected = losses_of(*bare)
    watched = made()
    with watch(*watched, ["update", "unexpected_change"]):
        found = losses_of(*watched)
    assert found == expected
    for one, other in zip(bare[0].parameters(), watched[0].parameters(), strict=True):
        assert torch.equal(one, other)


def test_closing_lets_go_of_all_samples():
    model, optimizer = made()
    monitor = watch(model, optimizer, ["update", "unexpected_change"])
    losses_of(model, optimizer)
    # Four parameters, the largest of which has 32 elements.
    assert tensors_of_shape(4, 32)
    monitor.close()
    assert not tensors_of_shape(4, 32)


def tensors_of_shape(*shape):
    gc.collect()
    return [item for item in gc.get_objects() if type(item) is torch.Tensor and item.shape == shape]


def test_a_replaced_optimizer_is_not_kept():
    model, optimizer = made()
    with watch(model, optimizer=None, quantities=["update", "unexpected_change"]) as monitor:
        losses_of(model, optimizer)
        reference = weakref.ref(optimizer)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses_of(model, optimizer)
        gc.collect()
        assert reference() is None
    assert {key[0] for key in rows(monitor, "update")} == set(range(10))
    assert not rows(monitor, "unexpected_change")


def test_a_crowd_of_optimizers_is_not_followed_and_training_goes_on(caplog):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(40)))
    optimizers = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    monitor = vario.watch(model, optimizers, quantities=["update"], every=1, sinks=["in_memory"])
    for step in range(2):
        model(batch(step, (3, 2))).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    monitor.close()
    assert "update" in monitor.off
    assert len([record for record in caplog.records if "too many to follow" in record.getMessage()]) == 1
    assert [record.step for record in records(monitor)] == [0, 1]
