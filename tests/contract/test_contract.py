"""What holds on every backend, whatever it offers."""

import json
import logging

import numpy as np
import pytest
from perceptron import NAMES, RATE, batches, first_weights, loss_and_gradients

import vario
from vario.backends.detect import find_backend
from vario.backends.numpy import summarise
from vario.backends.protocols import capabilities
from vario.backends.protocols.backend import in_words
from vario.config import make_config
from vario.core.quantities import PROBES
from vario.core.records import COLUMNS
from vario.core.selector import Selector
from vario.training.monitor import Monitor

CAPABILITIES = [
    value
    for value in vars(capabilities).values()
    if isinstance(value, type)
    and value.__module__ == capabilities.__name__
    and value is not capabilities.UnzeroedGradients
]


def watch(training, tmp_path, **options):
    defaults = {"directory": str(tmp_path), "name": "run", "every": 1, "strict": True}
    return vario.watch(training.model, **{**defaults, **options})


def by_hand(plan):
    """Per step: the gradients that an update uses, and the weights that it leaves."""
    weights, found = first_weights(), []
    for micro_batches in plan:
        passes = [loss_and_gradients(weights, *batch)[1] for batch in micro_batches]
        gradients = {name: sum(one[name] for one in passes) for name in NAMES}
        weights = {name: weights[name] - RATE * gradients[name] for name in NAMES}
        found.append((gradients, weights))
    return found


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_gradients_and_weights_are_those_of_the_oracle(training, tmp_path, micro_steps):
    plan = batches(4, micro_steps)
    with watch(training, tmp_path) as monitor:
        for micro_batches in plan:
            monitor.log(loss=training.step(micro_batches))
    run = vario.open_run(tmp_path / "run")
    for step, (gradients, weights) in enumerate(by_hand(plan)):
        for quantity, arrays in (("gradient", gradients), ("weight", weights)):
            rows = run.frame(step, quantity).to_pylist()
            assert sorted(row["target"] for row in rows) == sorted(NAMES)
            for row in rows:
                found, expected = [row[column] for column in COLUMNS], summarise(arrays[row["target"]])
                np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12, err_msg=row["target"])


def test_steps_are_numbered_alike_and_a_late_loss_belongs_to_its_step(training, tmp_path):
    plan = batches(5, 2)
    with watch(training, tmp_path) as monitor:
        losses = []
        for number, micro_batches in enumerate(plan):
            losses.append(training.step(micro_batches))
            assert (monitor.step_number, monitor.next_step_number) == (number, number + 1)
            monitor.log(loss=losses[-1])
    run = vario.open_run(tmp_path / "run")
    assert run.series("loss", "scalar").steps.tolist() == list(range(5))
    assert run.series("loss", "scalar").values.tolist() == losses
    assert run.steps("gradient").tolist() == run.steps("weight").tolist() == list(range(5))
    assert (run.state, run.last_step) == ("finished", 4)


def test_losses_are_bit_identical_watched_and_not(training, tmp_path):
    plan = batches(6)
    alone = type(training)()
    expected = [alone.step(micro_batches) for micro_batches in plan]
    with watch(training, tmp_path):
        assert [training.step(micro_batches) for micro_batches in plan] == expected
    assert all((training.arrays()[name] == array).all() for name, array in alone.arrays().items())


def test_closing_leaves_the_model_as_it_was_found(training, tmp_path):
    before = training.traces()
    with watch(training, tmp_path):
        training.step(batches(1)[0])
        assert training.traces() != before
    assert training.traces() == before
    training.step(batches(1)[0])
    assert vario.open_run(tmp_path / "run").last_step == 0


class Failing:
    """Raises when a backward has ended."""

    quantity, every = "failing", 1

    def attach(self, backend, recorder):
        def backward_ended(gradients):
            raise RuntimeError(f"looked at {len(gradients.named()[0])} gradients")

        backend.on_backward_ended(recorder.guarded(self.quantity, backward_ended))


def test_a_part_that_fails_is_switched_off_and_training_goes_on(training, tmp_path, caplog):
    config = make_config({"directory": str(tmp_path), "name": "run", "every": 1}, None)
    plan = batches(4)
    with caplog.at_level(logging.WARNING, "vario"), Monitor(training.model, None, config, probes=[Failing()]):
        for micro_batches in plan:
            training.step(micro_batches)
    run = vario.open_run(tmp_path / "run")
    ((part, error),) = [(part.part, part.error) for part in run.parts_off]
    assert (part, error) == ("failing", "RuntimeError: looked at 4 gradients")
    assert sum("'failing' failed" in record.message for record in caplog.records) == 1
    assert run.steps("gradient").tolist() == [0, 1, 2, 3]


def test_a_nan_is_found_where_it_came_in(training, tmp_path):
    plan = batches(6)
    plan[3][0][0][0, 0] = np.nan
    with watch(training, tmp_path):
        for micro_batches in plan:
            training.step(micro_batches)
    found = vario.first_bad(vario.open_run(tmp_path / "run"))
    assert found.step == 3


def test_a_second_watch_takes_the_place_of_the_first(training, tmp_path, capsys):
    first = watch(training, tmp_path)
    training.step(batches(1)[0])
    with watch(training, tmp_path, name="second"):
        training.step(batches(1)[0])
    assert "closed the earlier Monitor" in capsys.readouterr().err
    first.close()
    assert vario.open_run(tmp_path / "run").last_step == vario.open_run(tmp_path / "second").last_step == 0


def lacking(training):
    """What this backend does not offer: the names of probes, and what each needs."""
    backend = find_backend(training.model, None, Selector(), None, None)
    return {
        found.name: [in_words(need) for need in getattr(found.part, "needs", ()) if backend.offer(need) is None]
        for found in PROBES
        if any(backend.offer(need) is None for need in getattr(found.part, "needs", ()))
    }


def test_what_is_not_offered_is_listed_and_nothing_else_is(training, tmp_path):
    missing = lacking(training)
    with watch(training, tmp_path):
        training.step(batches(1)[0])
    listed = json.loads((tmp_path / "run" / "run.json").read_text())["not_offered"]
    assert all(entry["missing"] == " and ".join(missing[entry["quantity"]]) for entry in listed)
    run = vario.open_run(tmp_path / "run")
    asked = {*run.config["quantities"], *(name for name in PROBES.names() if name.startswith("scalar:")), "checksum"}
    assert {found.quantity for found in run.not_offered} == asked & missing.keys()
    assert not run.parts_off


def test_every_quantity_may_be_asked_for_by_name(training, tmp_path, caplog):
    missing = lacking(training)
    everything = [found.name for found in PROBES if not found.name.startswith("scalar:")]
    with caplog.at_level(logging.WARNING, "vario"), watch(training, tmp_path, quantities=everything):
        training.step(batches(1)[0])
    said = [record.message for record in caplog.records if "does not offer" in record.message]
    assert len(said) == bool(missing)
    assert all(name in said[0] for name in everything if name in missing)


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda capability: capability.__name__)
def test_what_is_offered_has_every_member(training, capability):
    offered = find_backend(training.model, None, Selector(), None, None).offer(capability)
    members = {name for base in capability.__mro__ for name in (*vars(base), *getattr(base, "__annotations__", ()))}
    needed = {name for name in members if not name.startswith("_")}
    assert needed
    if offered is not None:
        assert all(hasattr(offered, name) for name in needed)
