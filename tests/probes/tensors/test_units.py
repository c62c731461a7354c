"""Dead units of watched models, counted again by numpy from what modules took and returned."""

import numpy as np
import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint
from transformers.activations import ACT2FN

import vario
from models import Language, batch, ids, language_loss
from watching import rows, watch


class Training:
    """A few steps of a model on batches of one shape, and how many units of it are dead by hand."""

    def __init__(self, model, shape=(16, 4)):
        self.model = self.called = model
        self.shape = shape
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.losses = []

    def watch(self, **options):
        return watch(self.called, self.optimizer, ["unit"], **options)

    def run(self, steps=1, micro_steps=1):
        for _ in range(steps):
            for micro_step in range(micro_steps):
                loss = self.called(batch(10 * len(self.losses) + micro_step, self.shape)).square().mean()
                loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.losses.append(loss.item())
            with torch.no_grad():
                self.called(10 * batch(99, self.shape))
        return self


def dead(monitor):
    """{(step, target): share}"""
    found = {}
    for (step, quantity, micro_step, target), row in rows(monitor).items():
        assert (quantity, micro_step, row[0]) == ("unit", 0, 1)
        found[step, target] = row[1]
    return found


def perceptron(act=None, num_dead=3, width=10):
    """Some of its hidden units never get above zero."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), act or nn.ReLU(), nn.Linear(width, 2))
    with torch.no_grad():
        model[0].weight[:num_dead] = 0
        model[0].bias[:num_dead] = -20.0
        model[0].bias[num_dead:] = 1.0
    return model


def test_the_share_of_units_that_are_never_positive_is_recorded_per_activation_function():
    training = Training(perceptron())
    outputs = []
    training.model[1].register_forward_hook(lambda module, args, output: outputs.append(output.detach().numpy().copy()))
    with training.watch() as monitor:
        training.run(3)
    found = dead(monitor)
    for step in range(3):
        output = outputs[2 * step]  # the other one evaluates
        assert found.pop((step, "1:dead")) == pytest.approx((output <= 0).all(0).mean())
    assert not found  # neither the layer that gets the batch, nor the one that gets what was counted


def test_the_run_is_read_back_by_name_at_every_fiftieth_step(tmp_path):
    training = Training(perceptron())
    options = {"directory": str(tmp_path), "name": "run", "sinks": ["store"], "every": {}}
    with training.watch(**options) as monitor:
        training.run(51)
    series = vario.open_run(monitor.path).series("1:dead", "unit", "mean")
    assert series.steps.tolist() == [0, 50]
    assert series.values.tolist() == pytest.approx([0.3, 0.3])


@pytest.mark.parametrize(
    "act",
    [nn.ReLU(inplace=True), nn.ReLU6(), nn.GELU(), nn.SiLU(), nn.Mish(), nn.Hardswish(), nn.ELU(), nn.SELU()]
    + [ACT2FN[name] for name in ("silu", "gelu_new", "quick_gelu", "relu2", "gelu_pytorch_tanh")],
    ids=lambda act: type(act).__name__,
)
def test_every_function_that_falls_silent_below_zero_counts(act):
    training = Training(perceptron(act))
    with training.watch() as monitor:
        training.run()
    assert dead(monitor) == {(0, "1:dead"): pytest.approx(0.3)}


@pytest.mark.parametrize("act", [nn.Tanh(), nn.LeakyReLU(), nn.Sigmoid(), nn.Softplus(), ACT2FN["linear"]])
def test_a_function_that_is_never_silent_has_no_row(act):
    training = Training(perceptron(act))
    with training.watch() as monitor:
        training.run()
    # The layer behind it takes what is not zero.
    assert dead(monitor) == {(0, "2:dead"): 0.0}


class Functional(nn.Module):
    """Its activation function is no module."""

    def __init__(self, checkpointing=None):
        super().__init__()
        self.inside = perceptron()
        self.twin = nn.Linear(10, 2)
        self.checkpointing = checkpointing

    def forward(self, x):
        if self.checkpointing is None:
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.checkpointing)

    def block(self, x):
        x = nn.functional.relu(self.inside[0](x))
        return self.inside[2](x) + self.twin(x)


def test_a_function_that_is_no_module_shows_in_the_input_of_the_layers_behind_it():
    training = Training(Functional())
    with training.watch() as monitor:
        training.run(2)
    share = pytest.approx(0.3)
    assert dead(monitor) == {(step, target): share for step in range(2) for target in ("inside.2:dead", "twin:dead")}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_changes_nothing(reentrant):
    training = Training(Functional(checkpointing=reentrant))
    first = nn.Sequential(nn.Linear(4, 4), training.model)
    training.model = training.called = first
    training.optimizer = torch.optim.SGD(first.parameters(), lr=0.01)
    with training.watch() as monitor:
        training.run(2)
    found = dead(monitor)
    assert {target for _, target in found} == {"1.inside.0:dead", "1.inside.2:dead", "1.twin:dead"}
    assert found[1, "1.twin:dead"] == pytest.approx(0.3)


class Once(nn.Module):
    """One unit speaks in one of two passes only, another in none."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.act = nn.ReLU()
        self.num_calls = 0

    def forward(self, x):
        signs = torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -1.0]])[self.num_calls % 3 % 2]
        self.num_calls += 1
        return self.act(self.scale * signs * x[:, :3].abs())


def test_a_unit_that_speaks_in_one_micro_step_is_alive_in_the_step():
    training = Training(Once())
    with training.watch() as monitor:
        training.run(2, micro_steps=2)
    assert dead(monitor) == {(step, "act:dead"): pytest.approx(1 / 3) for step in range(2)}


def test_micro_steps_count_together_towards_the_rows_it_takes():
    for micro_steps, expected in ((1, {}), (2, {(0, "1:dead"): pytest.approx(0.3)})):
        training = Training(perceptron(), shape=(4, 4))
        with training.watch() as monitor:
            training.run(1, micro_steps=micro_steps)
        assert dead(monitor) == expected


def convolutional(kind, act=True):
    torch.manual_seed(0)
    layers = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[kind]
    first, second = layers(1, 4, 3), layers(4, 2, 3)
    with torch.no_grad():
        first.bias[0] = -20.0
        first.bias[1:] = 1.0
    return nn.Sequential(first, nn.ReLU() if act else nn.Identity(), second)


@pytest.mark.parametrize("kind", [2, 3])
def test_units_of_images_are_their_channels(kind):
    training = Training(convolutional(kind), shape=(2, 1) + (7,) * kind)
    with training.watch() as monitor:
        training.run()
    assert dead(monitor) == {(0, "1:dead"): 0.25}


def test_a_layer_that_has_its_units_elsewhere_counts_for_itself():
    training = Training(convolutional(1), shape=(3, 1, 9))
    with training.watch() as monitor:
        training.run()
    # For the function the last axis has the units; the layer behind it knows that they are channels.
    assert dead(monitor) == {(0, "1:dead"): 0.0, (0, "2:dead"): 0.25}


def test_a_nan_is_not_silence():
    training = Training(perceptron(num_dead=0))
    with training.watch() as monitor:
        with torch.no_grad():
            training.model[0].weight[:4] = torch.nan
        training.run()
    assert dead(monitor) == {(0, "1:dead"): 0.0}


def test_a_language_model_has_a_row_for_each_of_its_functions_and_layers():
    torch.manual_seed(0)
    model = Language()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shares = []
    model.layers[0].act.register_forward_hook(
        lambda module, args, output: shares.append((output.flatten(0, -2) <= 0).all(0).float().mean().item())
    )
    with watch(model, optimizer, ["unit"]) as monitor:
        language_loss(model, ids(0)).backward()
        optimizer.step()
    found = dead(monitor)
    assert {target for _, target in found} == {
        *(f"layers.{layer}.{part}:dead" for layer in (0, 1) for part in ("up", "act")),
        "head:dead",
    }
    assert found[0, "layers.0.act:dead"] == pytest.approx(shares[0])


def test_losses_are_the_same_bits_and_nothing_is_left_behind():
    plain = Training(perceptron(nn.ReLU(inplace=True))).run(3, micro_steps=2)
    training = Training(perceptron(nn.ReLU(inplace=True)))
    with training.watch() as monitor:
        training.run(3, micro_steps=2)
    assert len(rows(monitor)) == 3
    assert training.losses == plain.losses
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(tensor, training.model.state_dict()[name]), name
    for module in training.model.modules():
        assert not module._forward_pre_hooks
        assert not module._forward_hooks


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("compiled", ["whole", "by layer"])
def test_a_compiled_model_has_no_rows_and_compiles_as_without(compiled):
    found = []
    for watched in (False, True):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        training = Training(Language())
        training.called = lambda x, model=training.model: model(ids(0))["logits"]
        monitor = watch(training.model, training.optimizer, ["unit"]) if watched else None
        if compiled == "whole":
            training.model.compile(fullgraph=True, backend="aot_eager")
        else:
            for layer in training.model.layers:
                layer.compile(fullgraph=True, backend="aot_eager")
        training.run(2)
        found.append((training.losses, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())))
        if monitor is not None:
            monitor.close()
            outside = {"head:dead"} if compiled == "by layer" else set()
            assert {target for *_, target in rows(monitor)} == outside
    assert found[0] == found[1]
    torch._dynamo.reset()


def test_half_precision_counts_like_any_other():
    model = perceptron().bfloat16()
    model.forward = lambda x: nn.Sequential.forward(model, x.bfloat16()).float()
    training = Training(model)
    with training.watch() as monitor:
        training.run()
    assert dead(monitor) == {(0, "1:dead"): pytest.approx(0.3)}
    assert np.isfinite(training.losses).all()
