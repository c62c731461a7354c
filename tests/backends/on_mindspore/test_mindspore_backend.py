"""Trainings with real MindSpore (`trainings.py`, in its own environment), read back here beside NumPy and torch."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import vario
from vario.backends.numpy import summarise
from vario.core.records import COLUMNS, MAX, MIN

HERE = Path(__file__).parent
STEPS = 6
TRAINED = ("hidden.weight", "hidden.bias", "norm.gamma", "norm.beta", "head.weight", "head.bias")
NAMES_IN_TORCH = {"norm.gamma": "norm.weight", "norm.beta": "norm.bias"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(mindspore, tmp_path_factory):
    """The folder with all runs."""
    folder = tmp_path_factory.mktemp("mindspore")
    # As users train: operations and what reads their results run behind Python, in threads.
    mindspore(HERE / "trainings.py", cwd=folder, MS_DEV_LAUNCH_BLOCKING="0")
    return folder


@pytest.fixture(scope="module")
def found(trained):
    return json.loads((trained / "found.json").read_text())


@pytest.fixture(scope="module")
def own(trained):
    return vario.open_run(trained / "own")


@pytest.fixture(scope="module")
def arrays(trained):
    return dict(np.load(trained / "own.npz"))


def rows(run, step, quantity):
    """The Summaries of one frame, by target."""
    return {row["target"]: [row[column] for column in COLUMNS] for row in run.frame(step, quantity).to_pylist()}


def values(run, name):
    return run.series(name, "scalar").values.tolist()


def test_losses_are_bit_identical_watched_and_not(found, own):
    assert found["own"]["losses"] == found["own"]["expected"]
    assert values(own, "loss") == found["own"]["losses"]
    np.testing.assert_allclose(values(own, "loss_backward"), found["own"]["losses"], rtol=1e-7)
    assert (own.state, own.last_step, list(own.parts_off)) == ("finished", STEPS - 1, [])


@pytest.mark.parametrize("quantity", ["weight", "weight_before", "gradient", "moment", "activation"])
def test_summaries_are_those_of_numpy(own, arrays, quantity):
    for step in range(STEPS):
        seen = rows(own, step, quantity)
        known = {key.split("/", 2)[2]: one for key, one in arrays.items() if key.startswith(f"{step}/{quantity}/")}
        expected = {name: one for name, one in known.items() if name != "scale" or (step, quantity) == (0, "weight")}
        if quantity != "activation":
            assert sorted(seen) == sorted(expected)
        for target, array in expected.items():
            np.testing.assert_allclose(seen[target], summarise(array), rtol=1e-5, atol=1e-6, err_msg=target)


def test_every_cell_has_inputs_outputs_and_their_gradients(own):
    sides = {f"{cell}:{side}" for cell in ("root", "hidden", "act", "norm", "head") for side in ("input", "output")}
    assert set(rows(own, 0, "activation")) == sides
    # Nothing needs the gradient of the batch itself.
    assert set(rows(own, 0, "activation_gradient")) == sides - {"root:input", "hidden:input"}
    first = next(iter(own.frame(0, "activation").sort_by("order").to_pylist()))
    assert first["target"] == "root:input"


def test_all_three_points_of_a_gradient_agree_in_a_plain_loop(own):
    for step in range(STEPS):
        plain = rows(own, step, "gradient")
        assert rows(own, step, "gradient_local") == rows(own, step, "gradient_applied") == plain


def test_updates_are_what_the_weights_show(own, arrays):
    for step in range(STEPS):
        changes = rows(own, step, "update")
        for name in TRAINED:
            change = arrays[f"{step}/weight/{name}"].astype(float) - arrays[f"{step}/weight_before/{name}"]
            ratio = np.linalg.norm(change) / np.linalg.norm(arrays[f"{step}/weight_before/{name}"])
            np.testing.assert_allclose(changes[f"{name}:change"], summarise(change, 0.0), rtol=1e-6, atol=1e-9)
            assert changes[f"{name}:ratio"][MAX] == pytest.approx(ratio)
            assert changes[f"{name}:pace"][MAX] == pytest.approx(ratio / 0.01)


class Twin(torch.nn.Module):
    """The same model in torch."""

    def __init__(self, arrays):
        super().__init__()
        self.hidden, self.act = torch.nn.Linear(4, 8), torch.nn.ReLU()
        self.norm, self.head = torch.nn.LayerNorm(8), torch.nn.Linear(8, 2)
        with torch.no_grad():
            for name in TRAINED:
                own = self.get_parameter(NAMES_IN_TORCH.get(name, name))
                own.copy_(torch.from_numpy(arrays[f"first/{name}"]))

    def forward(self, inputs):
        return self.head(self.norm(self.act(self.hidden(inputs)))) * 1.0


def batches():
    generator = np.random.default_rng(1)
    for _ in range(STEPS):
        inputs = generator.normal(size=(16, 4)).astype(np.float32)
        yield torch.from_numpy(inputs), torch.from_numpy(np.tanh(inputs[:, :2] - inputs[:, 2:]).astype(np.float32))


def test_everything_agrees_with_torch_on_the_same_weights_and_batches(own, arrays, found, tmp_path):
    model = Twin(arrays)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    quantities = ["gradient", "weight", "moment", "activation", "activation_gradient", "update"]
    with vario.watch(
        model, optimizer, directory=str(tmp_path), name="torch", every=1, quantities=quantities, strict=True
    ) as monitor:
        for inputs, expected in batches():
            loss = (model(inputs) - expected).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    twin = vario.open_run(tmp_path / "torch")
    np.testing.assert_allclose(values(twin, "loss"), found["own"]["losses"], rtol=1e-5)
    in_torch = dict(NAMES_IN_TORCH)
    for step in range(STEPS):
        for quantity in quantities:
            other = rows(twin, step, quantity)
            for target, row in rows(own, step, quantity).items():
                name, colon, rest = target.partition(":")
                if name == "scale" or name == "root":
                    continue  # the twin has no frozen parameter, and multiplies by a number
                beside = other[in_torch.get(name, name) + colon + rest]
                assert row[:1] == beside[:1], target
                np.testing.assert_allclose(row[1:5], beside[1:5], rtol=1e-5, atol=1e-5, err_msg=f"{quantity} {target}")


def test_a_dataset_in_the_sink_is_watched_on_the_cpu_and_warned_of_elsewhere(trained, found):
    assert found["sink"] == found["model"]
    run = vario.open_run(trained / "sink")
    assert run.steps("gradient").tolist()[:STEPS] == list(range(STEPS))
    warnings = [line for line in (trained / "log.txt").read_text().splitlines() if "dataset_sink_mode" in line]
    assert len(warnings) == 1
    assert "Pass dataset_sink_mode=False to Model.train" in warnings[0]


def test_training_cells_and_model_train_are_the_same_training(trained, found):
    assert found["cell"] == found["model"]
    np.testing.assert_allclose(found["cell"], found["own"]["losses"], rtol=1e-6)
    for name in ("cell", "model"):
        run = vario.open_run(trained / name)
        np.testing.assert_allclose(values(run, "loss_backward"), found[name], rtol=1e-7)
        assert run.last_step == STEPS - 1
        assert set(rows(run, 2, "gradient")) == set(TRAINED)  # without the names of the cells around the network
        assert "head:output" in rows(run, 2, "activation_gradient")


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        ("Adam", {"exp_avg", "exp_avg_sq"}),
        ("AdamWeightDecay", {"exp_avg", "exp_avg_sq"}),
        ("SGD", {"momentum_buffer"}),
        ("RMSProp", {"ms", "moment"}),
        ("experimental.Adam", {"exp_avg", "exp_avg_sq"}),
        ("mint.Adam", {"exp_avg", "exp_avg_sq"}),
    ],
)
def test_the_state_of_every_optimizer_is_found(trained, optimizer, state):
    run = vario.open_run(trained / f"optimizer-{optimizer}")
    moments = rows(run, 2, "moment")
    assert {target.rpartition(":")[2] for target in moments} >= state
    assert {target.rpartition(":")[0] for target in moments} == set(TRAINED)
    np.testing.assert_allclose(values(run, "lr"), [1e-3] * 3, rtol=1e-6)
    kinds = {target.rpartition(":")[2] for target in rows(run, 2, "update")}
    assert ({"grad_vs_second_moment", "eps_share"} <= kinds) == ("exp_avg_sq" in state)


def test_learning_rates_of_schedules_and_groups(trained):
    run = vario.open_run(trained / "rates")
    both = {tuple(np.round(pair, 5)) for pair in zip(values(run, "lr"), values(run, "lr/1"), strict=True)}
    assert both == {(0.007, round(0.001 * step, 5)) for step in range(1, 7)}


def test_a_loss_scale_is_divided_out_and_a_skipped_update_is_told(trained, own):
    scaled = vario.open_run(trained / "scaled")
    assert values(scaled, "skipped_step") == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert values(scaled, "loss_scale") == [1024.0, 1024.0, 1024.0, 512.0, 512.0, 512.0]
    assert scaled.last_step == STEPS - 1
    loop = vario.open_run(trained / "scaled-loop")
    assert values(loop, "loss_scale") == [512.0] * STEPS
    for run, steps in ((scaled, 2), (loop, STEPS)):
        np.testing.assert_allclose(values(run, "loss_backward")[:steps], values(own, "loss")[:steps], rtol=1e-5)
        for step in range(steps):
            for quantity in ("gradient", "activation_gradient"):
                expected = rows(own, step, quantity)
                for target, row in rows(run, step, quantity).items():
                    np.testing.assert_allclose(row, expected[target], rtol=1e-3, atol=1e-5, err_msg=target)


def test_passes_before_one_update_are_micro_steps(trained, own):
    run = vario.open_run(trained / "accumulated")
    assert run.last_step == STEPS // 2 - 1
    passes = run.frame(0, "gradient_local").to_pylist()
    assert {row["micro_step"] for row in passes} == {0, 1}
    first = {row["target"]: row["sum"] for row in passes if row["micro_step"] == 0}
    second = {row["target"]: row["sum"] for row in passes if row["micro_step"] == 1}
    for target, row in rows(run, 0, "gradient").items():
        assert row[1] == pytest.approx((first[target] + second[target]) / 2, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("fault", "rule", "step", "target"),
    [
        ("nan", "non_finite", 9, "root:input"),
        ("rate", "lr_change", 12, "lr"),
        ("repeat", "data_repeat", 12, ""),
        ("frozen", "frozen_param", 4, "head.weight"),
    ],
)
def test_the_basic_faults_are_found(trained, fault, rule, step, target):
    run = vario.open_run(trained / f"fault-{fault}")
    leading = [one for one in run.incidents if one.lead.rule == rule]
    assert [one.lead.step for one in leading] == [step]
    assert target in (leading[0].lead.target or "")


def test_what_a_device_computes_is_what_numpy_does(found):
    device, expected = np.array(found["device"]), np.array(found["numpy"])
    np.testing.assert_allclose(device[:, MIN : MAX + 1], expected[:, MIN : MAX + 1], rtol=1e-6)
    np.testing.assert_allclose(device, expected, rtol=1e-5, atol=1e-5)
