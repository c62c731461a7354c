"""DeepSpeed on two real ranks under accelerate, under Hugging Face's Trainer, and in a script that knows no vario."""

import os
from pathlib import Path

import numpy as np
import pytest
import tiny_trainer
import torch
from oracle import HELD, Oracle, check_held, check_local, open_case, torchrun
from transformers import Trainer

from thorough import thorough
from vario.integrations.transformers import MonitorCallback

pytestmark = [pytest.mark.slow, thorough]

TESTS = Path(__file__).parents[1]
PACKAGES = TESTS.parent / ".peers" / "engines"
QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_applied", "moment"]


def environment():
    if not PACKAGES.is_dir():
        pytest.fail(f"DeepSpeed is not there ({PACKAGES}): run `make peers`")
    return {"PYTHONPATH": os.pathsep.join(map(str, (PACKAGES, TESTS / "engines", TESTS / "integrations")))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("trainers")
    cases = ["accelerate2", "accelerate3", "trainer2", "trainer3"]
    torchrun(place, "deepspeed_trainers.py", *cases, environment=environment())
    return place


@pytest.fixture(scope="module")
def oracle():
    return Oracle(accumulation=2, zeros=("spare.weight", "spare.bias"))


@pytest.mark.parametrize("case", ["accelerate2", "accelerate3"])
@pytest.mark.parametrize("quantity", HELD)
def test_a_loop_of_accelerate_is_one_process(folder, oracle, case, quantity):
    check_held(open_case(folder, case), oracle, quantity)


@pytest.mark.parametrize("case", ["accelerate2", "accelerate3"])
def test_local_gradients_in_a_loop_of_accelerate_are_those_of_the_ranks_own_batch(folder, case):
    check_local(open_case(folder, case), Oracle(accumulation=2), range(2))


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The same training by a Trainer on one process, with the batches of both ranks."""
    place = tmp_path_factory.mktemp("alone")
    options = {"directory": str(place / "runs"), "name": "alone", "every": 1, "strict": True, "quantities": QUANTITIES}
    callback = MonitorCallback(print_model_summary=False, **options)
    more = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "max_steps": 3, "adam_epsilon": 1e-3}
    tiny_trainer.made(place, [callback], tiny_trainer.tiny_gpt(dropout=0.0), InOrder, **more).train()
    return open_case(place, "alone")


@pytest.mark.parametrize("case", ["trainer2", "trainer3"])
@pytest.mark.parametrize("quantity", HELD)
def test_a_trainer_is_one_process(folder, alone, case, quantity):
    run = open_case(folder, case)
    assert set(run.targets(quantity)) == set(alone.targets(quantity))
    for name in run.targets(quantity):
        size = alone.series(name, quantity, "rms").values[0]
        for statistic in ("norm", "min", "max", "count"):
            found, wanted = (one.series(name, quantity, statistic, rank="all") for one in (run, alone))
            assert found.steps.tolist() == wanted.steps.tolist() == [1, 2, 3]
            # An extreme near zero is small against the elements, not against itself.
            slack = 1e-5 * size if statistic in ("min", "max") else 0.0
            note = f"{statistic} of {quantity} of {name}"
            np.testing.assert_allclose(found.values, wanted.values, rtol=1e-5, atol=slack, err_msg=note)


def test_both_micro_steps_of_a_trainer_have_local_gradients(folder):
    series = open_case(folder, "trainer3").series("transformer.wte.weight", "gradient_local", micro_steps=True)
    assert list(zip(series.steps, series.micro_steps, strict=True)) == [(s, m) for s in (1, 2, 3) for m in (0, 1)]


def test_an_unchanged_script_is_watched(tmp_path, oracle):
    run = ["-m", "vario", "run", "--directory", "runs", "--name", "found", "--every", "1", "--strict"]
    script = str(TESTS / "engines" / "deepspeed_script.py")
    torchrun(tmp_path, *run, script, "3", environment=environment())
    found = open_case(tmp_path, "found")
    assert found.state == "finished"
    for quantity in ("weight", "gradient", "moment"):
        check_held(found, oracle, quantity)
    assert found.targets("activation")
