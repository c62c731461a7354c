"""A training that goes on from a checkpoint goes on with its run."""

import json
import shutil

import pytest
from test_hf_trainer import callback, norms, series
from tiny_trainer import history, made
from transformers import TrainerCallback

import vario


def train(folder, watching, checkpoint=None, **arguments):
    settings = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, **arguments}
    trainer = made(folder, [watching] if watching else [], **settings)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(folder / "output" / checkpoint))
    return trainer


class StopAt(TrainerCallback):
    """Ends the training as a full disk would, after that many steps."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise OSError("no space left on device")


def test_the_checkpoint_names_the_run(tmp_path):
    watching = callback(tmp_path, quantities=["gradient"])
    train(tmp_path, watching)
    saved = json.loads((tmp_path / "output" / "checkpoint-4" / "trainer_state.json").read_text())
    kept = saved["stateful_callbacks"]["MonitorCallback"]
    assert kept["attributes"] == {"run_folder": str(watching.path)}
    assert type(watching)(**kept["args"]).state()["args"] == kept["args"]


def test_a_resumed_training_goes_on_with_its_run_from_the_checkpoints_step(tmp_path):
    first = callback(tmp_path, quantities=["gradient"])
    trainer = made(tmp_path, [first, StopAt(5)], save_strategy="steps", save_steps=2)
    with pytest.raises(OSError, match="no space left"):
        trainer.train()
    before = vario.open_run(first.path)
    assert (before.state, before.steps("gradient").tolist()) == ("crashed", [1, 2, 3, 4, 5])

    # As a new process would: another callback, told nothing.
    second = callback(tmp_path, quantities=["gradient"])
    resumed = train(tmp_path, second, "checkpoint-2", save_strategy="no")
    assert second.path == first.path
    run = vario.open_run(second.path)
    assert len(vario.list_runs(tmp_path / "runs")) == 1
    assert run.state == "finished"
    assert [session["first_step"] for session in run.sessions] == [0, 3]
    assert run.steps("gradient").tolist() == [1, 2, 3, 4, 5, 6]
    # What the first session recorded beyond the checkpoint is taken back: the Trainer's history has only the new rows.
    assert series(run, "loss") == pytest.approx(history(resumed, "loss"))
    assert norms(run) == pytest.approx(history(resumed, "grad_norm"), rel=1e-4)


def test_a_training_with_restored_callbacks_goes_on_with_its_run_too(tmp_path):
    first = callback(tmp_path, quantities=["gradient"])
    train(tmp_path, first, max_steps=4)
    second = callback(tmp_path, quantities=["gradient", "weight"])
    train(tmp_path, second, "checkpoint-2", restore_callback_states_from_checkpoint=True)
    run = vario.open_run(first.path)
    assert run.steps("gradient").tolist() == [1, 2, 3, 4, 5, 6]
    assert second.path is None, "the Trainer puts a callback of its own making in its place"


def test_a_run_that_moved_with_its_folder_of_runs_is_found(tmp_path):
    first = callback(tmp_path, quantities=["gradient"])
    train(tmp_path, first, max_steps=4)
    shutil.move(tmp_path / "runs", tmp_path / "elsewhere")
    second = callback(tmp_path, quantities=["gradient"], directory=str(tmp_path / "elsewhere"))
    train(tmp_path, second, "checkpoint-2")
    (run,) = vario.list_runs(tmp_path / "elsewhere")
    assert run.steps("gradient").tolist() == [1, 2, 3, 4, 5, 6]


def test_a_run_that_is_gone_is_told_and_a_new_one_begins_at_the_checkpoints_step(tmp_path, caplog):
    first = callback(tmp_path, quantities=["gradient"])
    train(tmp_path, first, max_steps=4)
    shutil.rmtree(tmp_path / "runs")
    second = callback(tmp_path, quantities=["gradient"])
    train(tmp_path, second, "checkpoint-2")
    assert vario.open_run(second.path).steps("gradient").tolist() == [3, 4, 5, 6]
    assert "no longer exists: a new one starts at step 3" in caplog.text


def test_a_checkpoint_written_without_the_callback_can_be_gone_on_with(tmp_path):
    train(tmp_path, None, max_steps=4)
    watching = callback(tmp_path, quantities=["gradient"])
    trainer = train(tmp_path, watching, "checkpoint-4", max_steps=8)
    run = vario.open_run(watching.path)
    assert run.steps("gradient").tolist() == [5, 6, 7, 8]
    assert sorted(series(run, "loss")) == [step for step in history(trainer, "loss") if step > 4]


def test_an_evaluation_before_the_first_resumed_step_does_not_land_in_it(tmp_path):
    first = callback(tmp_path, quantities=["gradient"])
    evaluating = {"eval_strategy": "steps", "eval_steps": 6}  # a Trainer of transformers 4 takes it from the checkpoint
    train(tmp_path, first, max_steps=4, **evaluating)
    second = callback(tmp_path, quantities=["gradient"])
    train(tmp_path, second, "checkpoint-2", eval_on_start=True, **evaluating)
    assert sorted(series(vario.open_run(second.path), "eval_loss")) == [6]


def test_the_same_trainer_may_train_on_from_its_own_checkpoint(tmp_path):
    watching = callback(tmp_path, quantities=["gradient"], name="one")
    trainer = train(tmp_path, watching, max_steps=4)
    trainer.args.max_steps = 6
    trainer.train(resume_from_checkpoint=True)
    run = vario.open_run(watching.path)
    assert run.name == "one"
    assert run.steps("gradient").tolist() == [1, 2, 3, 4, 5, 6]
