"""A logistic regression in NumPy, trained through `vario.watch` and read back."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import vario
from vario.backends.numpy import NumpyModel
from vario.core.errors import ModelError

sys.path.insert(0, str(Path(__file__).parents[2] / "web"))
sys.path.insert(0, str(Path(__file__).parents[2]))


def made(seed=0, dtype=np.float32):
    generator = np.random.default_rng(seed)
    inputs = generator.normal(size=(64, 5)).astype(dtype)
    truth = (inputs @ generator.normal(size=5) > 0).astype(dtype)
    weights = {"layer.weight": np.zeros(5, dtype), "layer.bias": np.zeros((), dtype), "scale": np.ones((), dtype)}
    return weights, inputs, truth


def loss_and_gradients(weights, inputs, truth):
    chances = 1 / (1 + np.exp(-weights["scale"] * (inputs @ weights["layer.weight"] + weights["layer.bias"])))
    error = (chances - truth) / len(truth)
    loss = -np.log(np.where(truth == 1, chances, 1 - chances)).mean()
    return float(loss), {"layer.weight": inputs.T @ error, "layer.bias": error.sum()}


def train(model, weights, inputs, truth, steps, monitor=None, nan_step=None):
    losses, seen = [], []
    for step in range(steps):
        model.forward_began(inputs)
        loss, gradients = loss_and_gradients(weights, inputs, truth)
        model.forward_ended(loss)
        if step == nan_step:
            gradients["layer.weight"][2] = np.nan
        model.backward_began()
        model.backward_ended(gradients)
        clipped = {name: np.clip(gradient, -0.05, 0.05) for name, gradient in gradients.items()}
        model.update_began(clipped)
        for name, gradient in clipped.items():
            weights[name] = weights[name] - np.float32(0.5) * gradient
        model.update_ended()
        losses.append(loss)
        seen.append((gradients, clipped, dict(weights)))
        if monitor is not None:
            monitor.log(loss=loss)
    return losses, seen


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numpy")
    weights, inputs, truth = made()
    model = NumpyModel(weights, frozen=["scale"])
    quantities = ["weight", "gradient", "gradient_applied", "activation"]
    with vario.watch(model, directory=str(folder), name="run", every=1, quantities=quantities, strict=True) as monitor:
        losses, seen = train(model, weights, inputs, truth, 20, monitor)
    return folder, losses, seen


def test_its_numbers_are_those_of_float64(trained):
    folder, losses, seen = trained
    run = vario.open_run(folder / "run")
    for number, quantity in enumerate(("gradient", "gradient_applied", "weight")):
        for name in ("layer.weight", "layer.bias"):
            expected = [np.linalg.norm(np.asarray(step[number][name], np.float64)) for step in seen]
            np.testing.assert_allclose(run.series(name, quantity, "norm").values, expected, rtol=1e-12)
    assert run.series("loss", "scalar").values.tolist() == losses
    assert losses[-1] < losses[0]
    assert run.series("scale", "weight", "norm").steps.tolist() == [0], "frozen ones once"
    assert "scale" not in run.targets("gradient")


def test_its_steps_are_timed(trained):
    run = vario.open_run(trained[0] / "run")
    names = run.targets("scalar")
    assert {"step_seconds", "forward_seconds", "backward_seconds", "update_seconds", "wait_seconds"} <= set(names)
    assert run.versions["numpy"] == np.__version__


def test_its_structure_is_that_of_its_names(trained):
    structure = vario.open_run(trained[0] / "run").structure(0)
    assert {(module["name"], module["num_parameters"]) for module in structure["modules"]} == {
        ("root", 1),
        ("layer", 6),
    }
    assert [(one["name"], one["shape"], one["dtype"], one["trainable"]) for one in structure["parameters"]] == [
        ("layer.weight", [5], "float32", True),
        ("layer.bias", [], "float32", True),
        ("scale", [], "float32", False),
    ]


def test_targets_choose_by_module_and_name(tmp_path):
    weights, inputs, truth = made()
    model = NumpyModel(weights)
    with vario.watch(model, directory=str(tmp_path), name="run", every=1, targets=["layer"], strict=True):
        train(model, weights, inputs, truth, 2)
    assert vario.open_run(tmp_path / "run").targets("weight") == ["layer.weight", "layer.bias"]


def test_a_nan_that_was_put_in_is_found(tmp_path):
    weights, inputs, truth = made()
    model = NumpyModel(weights)
    with vario.watch(model, directory=str(tmp_path), name="run", every=1):
        train(model, weights, inputs, truth, 12, nan_step=9)
    run = vario.open_run(tmp_path / "run")
    found = vario.first_bad(run)
    assert (found.step, found.quantity, found.target) == (9, "gradient", "layer.weight")
    assert run.frame(9, "gradient").column("nans").to_pylist() == [1, 0]
    assert any(alert.rule == "non_finite" for alert in run.alerts)


def test_what_it_lacks_is_a_fact_in_report_and_page(trained, capsys):
    from web_client import serving

    from vario.cli import main

    folder = trained[0]
    assert main(["report", str(folder / "run")]) == 0
    printed = capsys.readouterr().out
    assert "Not offered for this framework" in printed
    assert "Missing from this run" not in printed
    with serving(folder) as client:
        answer = client.get("/api/settings", run="run")
    assert {"quantity": "activation", "missing": "module tensors"} in answer["not_offered"]
    assert answer["parts_off"] == []


def test_a_loop_that_only_says_where_its_steps_end(tmp_path):
    weights, inputs, truth = made()
    model = NumpyModel(weights)
    with vario.watch(model, directory=str(tmp_path), name="run", every=1, strict=True) as monitor:
        for _ in range(3):
            _, gradients = loss_and_gradients(weights, inputs, truth)
            model.backward_ended(gradients)
            weights["layer.weight"] -= 0.1 * gradients["layer.weight"]
            monitor.step()
    run = vario.open_run(tmp_path / "run")
    assert run.steps("gradient").tolist() == run.steps("weight").tolist() == [0, 1, 2]


def test_an_update_that_raised_is_no_step(tmp_path):
    weights, inputs, truth = made()
    model = NumpyModel(weights)
    with vario.watch(model, directory=str(tmp_path), name="run", every=1, strict=True):
        model.forward_began(inputs)
        model.backward_ended({"layer.weight": np.full(5, 1e9)})
        model.update_began()  # and here something raises, which the loop catches
        train(model, weights, inputs, truth, 2)
    run = vario.open_run(tmp_path / "run")
    assert run.series("layer.weight", "gradient", "absmax").values.max() < 1e9
    assert run.last_step == 1


def test_the_scale_of_a_loss_is_divided_out(tmp_path):
    weights, inputs, truth = made()
    model = NumpyModel(weights)
    _, gradients = loss_and_gradients(weights, inputs, truth)
    with vario.watch(model, directory=str(tmp_path), name="run", every=1, strict=True) as monitor:
        model.backward_ended({name: 1024 * gradient for name, gradient in gradients.items()}, scale=1024)
        monitor.step()
    found = vario.open_run(tmp_path / "run").series("layer.weight", "gradient", "norm").values
    np.testing.assert_allclose(found, [np.linalg.norm(gradients["layer.weight"])], rtol=1e-6)


def test_a_gradient_of_no_parameter_switches_the_loop_off_and_not_the_training(tmp_path, caplog):
    weights, inputs, truth = made()
    model = NumpyModel(weights)
    with vario.watch(model, directory=str(tmp_path), name="run", every=1):
        model.backward_ended({"layer.wieght": np.zeros(5)})
        train(model, weights, inputs, truth, 2)
    (part,) = vario.open_run(tmp_path / "run").parts_off
    assert (part.part, part.error) == (
        "training loop",
        "ModelError: backward_ended: 'layer.wieght' is not a parameter of this model",
    )
    assert "training continues" in caplog.text


def test_a_snapshot_that_is_asked_for_is_listed_as_well(tmp_path):
    weights, inputs, truth = made()
    model = NumpyModel(weights)
    options = {"directory": str(tmp_path), "name": "run", "every": 1, "actions": {"page": ["snapshot"]}}
    with vario.watch(model, **options):
        train(model, weights, inputs, truth, 6, nan_step=3)
    run = vario.open_run(tmp_path / "run")
    assert ("action snapshot", "snapshots") in [(found.quantity, found.missing) for found in run.not_offered]
    assert not run.parts_off


def test_no_other_framework_is_imported(tmp_path):
    code = """
import sys
import numpy as np
import vario
from vario.backends.numpy import NumpyModel

model = NumpyModel({"weight": np.ones(3)})
with vario.watch(model, name="run", every=1, strict=True) as monitor:
    for _ in range(3):
        model.backward_ended({"weight": np.ones(3)})
        model.update_ended()
assert vario.open_run("vario_runs/run").last_step == 2
assert "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_watched_is_refused():
    with pytest.raises(ModelError, match="no parameters"):
        NumpyModel({})
    with pytest.raises(ModelError, match="'b' is listed as frozen"):
        NumpyModel({"a": np.zeros(1)}, frozen=["b"])
    with pytest.raises(
        ModelError,
        match=r"expected a mindspore.nn.Cell or a torch.nn.Module or a vario.backends.numpy.NumpyModel, got dict",
    ):
        vario.watch({"a": np.zeros(1)})
