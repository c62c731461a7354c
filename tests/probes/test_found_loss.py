"""The loss that nobody logs: what backward is called on, weighted as the loop accumulates."""

import copy

import pytest
import torch
from torch import nn

from models import Perceptron, batch
from watching import scalar, watch


def made(seed=0):
    torch.manual_seed(seed)
    return Perceptron(dropout=0.0)


def loss_of(model, seed):
    return model(batch(seed)).square().mean()


def recorded(monitor):
    """{name: [values]} of every loss that was found."""
    names = sorted({name for record in monitor.sinks["in_memory"].records for name in record.scalars.values})
    return {name: list(scalar(monitor, name).values()) for name in names if name.startswith("loss_")}


def run(loop, steps=4, model=None, optimizer=None, name="loss_backward"):
    """Watch `loop(model, optimizer, step)`, which returns what a person would print; compare it with what was found."""
    model = model or made()
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, optimizer, ["gradient"]) as monitor:
        printed = [loop(model, optimizer, step) for step in range(steps)]
    assert recorded(monitor) == {name: pytest.approx(printed, rel=1e-5)}


def accumulating(divide, passes=lambda step: 3):
    def loop(model, optimizer, step):
        optimizer.zero_grad()
        losses = []
        for index in range(passes(step)):
            loss = loss_of(model, 10 * step + index)
            losses.append(loss.item())
            divide(loss, passes(step)).backward()
        optimizer.step()
        return sum(losses) / len(losses)

    return loop


DIVISIONS = {
    "not at all": lambda loss, passes: loss,
    "by a number": lambda loss, passes: loss / passes,
    "by a tensor": lambda loss, passes: loss / torch.tensor(passes),
    "by a factor": lambda loss, passes: (1 / passes) * loss,
    "in place": lambda loss, passes: loss.div_(passes),
    "in two steps": lambda loss, passes: loss * 2 / (2 * passes),
}


@pytest.mark.parametrize("divide", DIVISIONS.values(), ids=DIVISIONS.keys())
def test_micro_steps_are_averaged_whether_the_loop_divides_or_not(divide):
    run(accumulating(divide))


@pytest.mark.parametrize("divide", DIVISIONS.values(), ids=DIVISIONS.keys())
def test_a_step_that_an_epochs_end_cuts_short_is_averaged_over_what_it_has(divide):
    # The loop divides by what it meant to accumulate.
    run(accumulating(lambda loss, passes: divide(loss, 3), lambda step: 1 if step == 2 else 3))


def test_weights_of_micro_steps_that_add_up_to_one_are_the_loops_own():
    def loop(model, optimizer, step):
        optimizer.zero_grad()
        total = 0.0
        for index, weight in enumerate((0.5, 0.3, 0.2)):
            loss = weight * loss_of(model, 10 * step + index)
            total += loss.item()
            loss.backward()
        optimizer.step()
        return total

    run(loop)


@pytest.mark.parametrize("over", ["the step", "each micro-step"])
@pytest.mark.parametrize("reduce", ["by the criterion", "by hand"])
def test_sums_over_items_are_weighted_by_what_they_are_divided_by(over, reduce):
    sizes = (6, 4, 9)

    def loop(model, optimizer, step):
        optimizer.zero_grad()
        losses = []
        for index, size in enumerate(sizes):
            output = model(torch.randn(size, 4, generator=torch.Generator().manual_seed(10 * step + index)))
            labels = torch.arange(size) % output.shape[1]
            if reduce == "by hand":
                total = nn.functional.cross_entropy(output, labels, reduction="none").sum()
            else:
                total = nn.functional.cross_entropy(output, labels, reduction="sum")
            loss = total / (sum(sizes) if over == "the step" else size)
            losses.append(loss.item())
            loss.backward()
        optimizer.step()
        return sum(losses) if over == "the step" else sum(losses) / len(losses)

    run(loop)


def test_terms_of_one_pass_are_added_up_and_one_that_is_repeated_counts_once():
    def loop(model, optimizer, step):
        optimizer.zero_grad()
        output = model(batch(step))
        first, second = output.square().mean(), output.abs().mean()
        first.backward(retain_graph=True)
        second.backward(retain_graph=True)
        second.backward()
        optimizer.step()
        return (first + second).item()

    run(loop)


def test_several_losses_of_one_backward_are_added_up_with_the_gradients_it_is_given():
    def loop(model, optimizer, step):
        optimizer.zero_grad()
        output = model(batch(step))
        first, second = output.square().mean(), output.abs().mean()
        torch.autograd.backward([first, second], [torch.tensor(1.0), torch.tensor(0.25)])
        optimizer.step()
        return (first + second / 4).item()

    run(loop)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_backward_whose_gradients_are_thrown_away_does_not_count(set_to_none):
    def loop(model, optimizer, step):
        loss_of(model, 50 + step).backward()  # a batch that the loop then leaves out
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        return loss.item()

    run(loop)


def test_sharpness_aware_minimisation_shows_the_loss_at_the_weights_of_the_step():
    def loop(model, optimizer, step):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        climbed = [0.05 * parameter.grad for parameter in model.parameters()]
        with torch.no_grad():
            for parameter, climb in zip(model.parameters(), climbed, strict=True):
                parameter.add_(climb)
        optimizer.zero_grad()
        loss_of(model, step).backward()
        with torch.no_grad():
            for parameter, climb in zip(model.parameters(), climbed, strict=True):
                parameter.sub_(climb)
        optimizer.step()
        return loss.item()

    run(loop)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # LBFGS of torch 2.8 does
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.LBFGS])
def test_a_closure_shows_the_loss_that_step_returns(kind):
    model = made()
    optimizer = kind(model.parameters(), lr=0.05)

    def loop(model, optimizer, step):
        def closure():
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    run(loop, model=model, optimizer=optimizer)


def test_the_loss_scale_is_taken_out():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def loop(model, optimizer, step):
        losses = []
        for index in range(2):
            loss = loss_of(model, 10 * step + index)
            losses.append(loss.item())
            scaler.scale(loss / 2).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return sum(losses) / 2

    run(loop, model=model, optimizer=optimizer, steps=5)


def test_gradients_that_the_loop_asks_for_are_those_of_a_loss_too():
    model = made()
    printed = []
    with watch(model, None, ["weight"]) as monitor:
        for step in range(3):
            loss = loss_of(model, step)
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                    parameter.sub_(0.05 * gradient)
            monitor.step()
            printed.append(loss.item())
    assert recorded(monitor) == {"loss_backward": pytest.approx(printed)}


def test_inner_gradients_of_an_outer_loss_are_no_loss():
    def loop(model, optimizer, step):
        optimizer.zero_grad()
        names, weights = zip(*model.named_parameters(), strict=True)
        inner = loss_of(model, step)
        gradients = torch.autograd.grad(inner, weights, create_graph=True)
        adapted = {name: weight - 0.1 * slope for name, weight, slope in zip(names, weights, gradients, strict=True)}
        outer = torch.func.functional_call(model, adapted, (batch(step + 30),)).square().mean()
        outer.backward()
        optimizer.step()
        return outer.item()

    run(loop)


def test_a_penalty_on_gradients_of_the_input_is_part_of_the_loss_and_no_loss_by_itself():
    def loop(model, optimizer, step):
        optimizer.zero_grad()
        x = batch(step).requires_grad_()
        output = model(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        loss = output.square().mean() + slope.square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    run(loop)


def test_backward_of_another_model_and_evaluations_are_not_taken():
    other = made(1)

    def loop(model, optimizer, step):
        optimizer.zero_grad()
        loss_of(other, step).backward()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        model.eval()
        loss_of(model, 90 + step)  # without no_grad, as some evaluations are
        model.train()
        return loss.item()

    run(loop)


def test_optimizers_inside_of_backward():
    model = made()
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.05) for parameter in model.parameters()}
    for parameter, own in optimizers.items():

        def update(tensor, own=own):
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)

    def loop(model, optimizer, step):
        loss = loss_of(model, step)
        loss.backward()
        return loss.item()

    run(loop, model=model, optimizer=list(optimizers.values()))


def test_two_optimizers_that_share_one_backward_have_one_loss():
    model = made()
    parameters = list(model.parameters())
    optimizers = [torch.optim.SGD(parameters[:2], lr=0.05), torch.optim.AdamW(parameters[2:], lr=0.01)]

    def loop(model, _, step):
        loss = loss_of(model, step)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    run(loop, model=model, optimizer=optimizers)


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
def test_models_that_are_trained_against_each_other_have_a_loss_each(given):
    torch.manual_seed(0)
    generator, discriminator = nn.Linear(3, 4), nn.Linear(4, 1)
    for_g = torch.optim.SGD(generator.parameters(), lr=0.01)
    for_d = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    criterion = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(8, 1), torch.zeros(8, 1)
    of_d, of_g = [], []
    models = {"generator": generator, "discriminator": discriminator}
    with watch(models, [for_d, for_g] if given else None, ["gradient"]) as monitor:
        for _ in range(3):
            discriminator.zero_grad()
            real = criterion(discriminator(torch.randn(8, 4)), ones)
            real.backward()
            made_up = generator(torch.randn(8, 3))
            fake = criterion(discriminator(made_up.detach()), zeros)
            fake.backward()
            for_d.step()
            generator.zero_grad()
            fooled = criterion(discriminator(made_up), ones)
            fooled.backward()
            for_g.step()
            of_d.append((real + fake).item())
            of_g.append(fooled.item())
    assert recorded(monitor) == {
        "loss_backward/discriminator": pytest.approx(of_d),
        "loss_backward/generator": pytest.approx(of_g),
    }


class Pair(Perceptron):
    """Returns what nanoGPT does."""

    def forward(self, x):
        output = super().forward(x)
        return output, output.square().mean()


def test_a_loss_that_comes_with_logits_is_the_models_own():
    def loop(model, optimizer, step):
        losses = []
        for index in range(2):
            _, loss = model(batch(10 * step + index))
            losses.append(loss.item())
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        return sum(losses) / 2

    torch.manual_seed(0)
    run(loop, model=Pair(dropout=0.0), name="loss_local")


def test_losses_and_weights_are_bit_identical_and_torch_is_left_as_it_was():
    original = torch.autograd._engine_run_backward
    found = {}
    for is_watched in (False, True):
        model = made()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        loop = accumulating(lambda loss, passes: loss / passes)
        monitor = watch(model, optimizer, ["gradient"]) if is_watched else None
        losses = [loop(model, optimizer, step) for step in range(5)]
        if monitor is not None:
            assert torch.autograd._engine_run_backward is not original
            monitor.close()
        found[is_watched] = losses, copy.deepcopy(model.state_dict())
    assert torch.autograd._engine_run_backward is original
    assert found[True][0] == found[False][0]
    for name, weight in found[False][1].items():
        assert torch.equal(weight, found[True][1][name]), name


@pytest.mark.filterwarnings("ignore")  # what inductor and dynamo warn of is theirs
def test_a_compiled_model_shows_the_same():
    torch._dynamo.reset()
    model = made()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loop(model, optimizer, step):
        losses = []
        for index in range(2):
            loss = compiled(batch(10 * step + index)).square().mean()
            losses.append(loss.item())
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        return sum(losses) / 2

    run(loop, model=model, optimizer=optimizer)
    torch._dynamo.reset()


def test_what_cannot_be_followed_is_said_and_training_goes_on(caplog, monkeypatch):
    def broken(start):
        raise RuntimeError("no number today")

    monkeypatch.setattr("vario.backends.torch.loop.backward_losses._value", broken)
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, optimizer, ["gradient"], strict=False) as monitor:
        for step in range(3):
            loss_of(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert recorded(monitor) == {}
    assert "no number today" in caplog.text
    assert sorted(scalar(monitor, "step_seconds")) == [0, 1, 2]


@pytest.mark.parametrize("factor", [float("inf"), 0.0, float("nan")])
def test_a_loss_multiplied_by_what_is_no_weight_is_kept_as_it_is(factor):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, ["gradient"]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            for seed in range(2):
                (loss_of(model, 10 * step + seed) * factor).backward()
            optimizer.step()
    (found,) = recorded(monitor).values()
    assert len(found) == 3
    assert found[:1] == pytest.approx([factor], nan_ok=True)
