"""Training jobs of real frameworks, looked at while they are stopped half way and after they have ended."""

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import vario
from trainer_outputs import answer, note_kinds

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Regression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))

    def forward(self, x, labels=None):
        predicted = self.layers(x)
        return {"loss": (predicted - labels).square().mean(), "logits": predicted}


class PowerCut(TrainerCallback):
    def on_log(self, args, state, control, **kwargs):
        if state.global_step == 16:
            raise KeyboardInterrupt


def train(folder, callbacks=(), **changes):
    torch.manual_seed(0)
    points = torch.randn(80, 8)
    rows = [{"x": point, "labels": point.sum()[None]} for point in points]
    options = {"per_device_train_batch_size": 8, "num_train_epochs": 3, "logging_steps": 2, "save_steps": 10}
    options |= {"eval_strategy": "steps", "eval_steps": 10, "report_to": "tensorboard", "disable_tqdm": True}
    options |= {"use_cpu": True, "seed": 0, "learning_rate": 1e-2}
    arguments = TrainingArguments(str(folder), **{**options, **changes})
    return Trainer(Regression(), arguments, train_dataset=rows, eval_dataset=rows[:16], callbacks=list(callbacks))


@pytest.fixture
def log_folder(tmp_path, monkeypatch):
    # Where the Trainer's TensorBoard files go, in every version: below the output folder.
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "outputs" / "runs" / "now"))
    return tmp_path / "outputs"


def test_a_finished_training_is_read_from_the_files_of_the_trainer(capsys, log_folder):
    trainer = train(log_folder)
    trainer.train()
    trainer.save_state()
    found = answer(capsys, log_folder)
    logged = [row for row in trainer.state.log_history if "loss" in row]
    assert (found["format"], found["is_finished"], found["step_percent"]) == ("trainer_state", True, 100)
    assert found["loss"]["last"] == logged[-1]["loss"]
    assert found["loss"]["count"] == len(logged) == 15
    assert found["grad_norm"]["last"] == logged[-1]["grad_norm"]
    assert [each["name"] for each in found["evaluation"]] == ["eval_loss"]
    assert found["speed"]["remaining_seconds"] is None


def test_a_training_cut_off_between_checkpoints_is_as_far_as_its_event_files(capsys, log_folder):
    trainer = train(log_folder, [PowerCut()])
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    found = answer(capsys, log_folder)
    assert found["format"] == "trainer_state"
    # The state was written at step 10; the reader sees what the event files have on top of it.
    assert (found["step"], found["max_steps"], found["is_finished"]) == (16, 30, False)
    assert found["loss"]["last_step"] == 16
    assert found["speed"]["source"] == "event_times"
    assert found["speed"]["remaining_seconds"] == pytest.approx(14 * found["speed"]["seconds_per_step"])
    assert note_kinds(found) == ["joined"]


def test_a_resumed_training_is_one_curve(capsys, log_folder):
    with pytest.raises(KeyboardInterrupt):
        train(log_folder, [PowerCut()]).train()
    resumed = train(log_folder)
    resumed.train(resume_from_checkpoint=True)
    resumed.save_state()
    found = answer(capsys, log_folder)
    assert (found["step"], found["loss"]["count"], found["is_finished"]) == (30, 15, True)


def test_a_run_of_vario_is_read_from_its_own_folder(capsys, tmp_path):
    torch.manual_seed(0)
    model = Regression()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", quantities=["gradient"]) as monitor:
        for _ in range(12):
            point = torch.randn(8, 8)
            loss = model(point, point.sum(1, keepdim=True))["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item(), learning_rate=1e-2)
    for place in (tmp_path, tmp_path / "run"):
        found = answer(capsys, place)
        assert (found["format"], found["is_finished"], found["loss"]["count"]) == ("vario_run", True, 12)
        assert found["loss"]["last"] == loss.item()
        assert found["learning_rate"]["last"] == 1e-2
        assert found["speed"]["source"] == "row_times"
