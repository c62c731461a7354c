"""Finding the model of a script: the outermost modules that a live optimizer trains."""

import gc

import pytest
import torch
from torch import nn

from models import Perceptron, batch
from vario.backends.torch.loop.discovery import Search, live_optimizers, models_in_training
from vario.backends.torch.naming import clean, named_modules, named_parameters, unwrap
from vario.backends.torch.targets import Targets
from vario.core.selector import Selector


@pytest.fixture(autouse=True)
def nobody_else():
    gc.collect()
    # An optimizer that a test of another file has left behind, in torch's own caches for example, trains nothing more.
    for optimizer in live_optimizers():
        optimizer.param_groups.clear()


def found_by(model, call):
    seen = []
    search = Search(lambda models, step, losses: seen.append(models), lambda optimizer: False, lambda: False)
    try:
        call(model)
    finally:
        search.stop()
    return seen


def test_the_first_forward_with_gradients_finds_the_outermost_model_once():
    model = nn.Sequential(Perceptron(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def call(network):
        with torch.no_grad():
            network(batch(0))
        nn.ReLU()(batch(0))
        network[0](batch(0))
        network(batch(0))

    (found,) = found_by(model, call)
    assert list(found.values()) == [model]
    assert list(found) == [""]
    assert optimizer.param_groups


def test_a_model_that_nothing_trains_yet_is_found_after_its_first_update():
    model = Perceptron()

    def call(network):
        network(batch(0)).sum().backward()
        torch.optim.SGD(network.parameters(), lr=0.1).step()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        network(batch(0))
        assert optimizer.param_groups

    (found,) = found_by(model, call)
    assert list(found.values()) == [model]


def test_several_models_in_training_get_names_of_their_own():
    models = [nn.Linear(4, 4), nn.Linear(4, 4), Perceptron()]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    found = models_in_training(models[1])
    assert set(found) == {"linear", "linear1", "perceptron"}
    assert found["linear"] is models[1]
    assert {id(model) for model in found.values()} == {id(model) for model in models}
    assert len(optimizers) == 3


class Around(nn.Module):
    """Wraps a module for one call, as solvers of differential equations do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner(inputs)


def test_a_module_around_a_part_of_a_model_is_no_model_of_its_own():
    whole = nn.Sequential(Perceptron(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    around = Around(whole[0])
    assert list(models_in_training(around).values()) == [whole]
    again = Around(whole)
    assert list(models_in_training(again).values()) == [again]
    assert optimizer.param_groups


def test_a_parameter_that_models_share_has_one_name():
    first, second = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), nn.Sequential(nn.Linear(4, 3))
    second[0].weight = first[0].weight
    targets = Targets([first, second], Selector())
    assert list(targets.all_parameters) == ["0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias", "1.0.bias"]


def test_names_are_freed_from_wrappers():
    model = nn.Sequential(Perceptron(), nn.Linear(3, 1))
    model[0] = torch.compile(model[0], backend="eager")
    compiled = torch.compile(model, backend="eager")
    assert unwrap(compiled) is model
    assert unwrap(nn.DataParallel(compiled)) is model
    names = [name for name, _ in named_modules(model)]
    assert names == ["root", "0", "0.up", "0.act", "0.dropout", "0.down", "1"]
    assert [name for name, _ in named_parameters(model)][:2] == ["0.up.weight", "0.up.bias"]
    assert clean("_orig_mod.layers.0._checkpoint_wrapped_module.up") == "layers.0.up"


def test_the_structure_names_shapes_dtypes_and_shared_weights():
    model = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(2, 3, bias=False)})
    model["b"].weight = model["a"].weight
    model["a"].bias.requires_grad_(False)
    described = Targets({"net": model}, Selector()).structure()
    kept = ("name", "shape", "dtype", "trainable", "shared_with")
    assert [{key: parameter[key] for key in kept} for parameter in described["parameters"]] == [
        {
            "name": "net.a.weight",
            "shape": [3, 2],
            "dtype": "float32",
            "trainable": True,
            "shared_with": ["net.b.weight"],
        },
        {"name": "net.a.bias", "shape": [3], "dtype": "float32", "trainable": False, "shared_with": []},
    ]
    assert [module["name"] for module in described["modules"]] == ["net.root", "net.a", "net.b"]
    assert described["modules"][1] == {"name": "net.a", "class": "Linear", "num_parameters": 9}
