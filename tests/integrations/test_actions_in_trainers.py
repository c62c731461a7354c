"""Checkpoints and ends that incidents ask for, in real trainers; what is asked for is done by the trainer itself."""

import importlib
import json
import math
import warnings

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from tiny_trainer import history, made, tiny_gpt
from torch import nn
from transformers import Trainer, TrainerCallback

import vario
from models import Perceptron, batch
from vario import MonitorCallback

ACTIONS = {"page": ["checkpoint", "stop"]}


class Broken(Trainer):
    """Its loss is NaN at the fifth step."""

    def compute_loss(self, *args, **kwargs):
        loss = super().compute_loss(*args, **kwargs)
        return loss * math.nan if self.state.global_step == 4 else loss


class Waiting(TrainerCallback):
    """Lets the rules keep up, so that the end comes at the same step each time."""

    def __init__(self, watching):
        self.watching = watching

    def on_step_end(self, *args, **kwargs):
        if self.watching.monitor is not None:
            self.watching.monitor.wait()


def watching(folder, **options):
    defaults = {"print_model_summary": False, "directory": str(folder / "runs"), "strict": True}
    return MonitorCallback(**{**defaults, **options})


def test_the_trainer_saves_and_stops_after_a_nan_and_its_losses_are_as_without(tmp_path):
    callback = watching(tmp_path, actions=ACTIONS)
    settings = {"trainer": Broken, "max_steps": 40, "logging_nan_inf_filter": False}
    trainer = made(tmp_path, [callback, Waiting(callback)], tiny_gpt(dropout=0.0), **settings)
    trainer.train()
    assert 8 <= trainer.state.global_step <= 11
    assert (tmp_path / "output" / f"checkpoint-{trainer.state.global_step}" / "trainer_state.json").exists()
    bare = made(tmp_path, [StopAt(5)], tiny_gpt(dropout=0.0), **settings)
    bare.train()
    before = {step: loss for step, loss in history(trainer, "loss").items() if step < 5}
    assert before == {step: loss for step, loss in history(bare, "loss").items() if step < 5}
    assert vario.open_run(callback.path).state == "finished"


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def test_the_trainer_goes_on_when_nothing_is_asked_for(tmp_path):
    callback = watching(tmp_path)
    trainer = made(tmp_path, [callback, Waiting(callback)], trainer=Broken, max_steps=12)
    trainer.train()
    assert trainer.state.global_step == 12
    assert not list((tmp_path / "output").glob("checkpoint-*"))


def test_a_checkpoint_of_the_trainer_holds_no_secret_and_what_it_holds_can_be_used_again(tmp_path):
    notify = {"webhook": "https://hooks.slack.com/secret-token", "email": {"to": "a@b.c", "host": "h"}, "least": "page"}
    callback = watching(tmp_path, notify=notify, actions={"page": ["escalate"]})
    trainer = made(tmp_path, [callback], max_steps=2, save_strategy="steps", save_steps=2)
    trainer.train()
    text = (tmp_path / "output" / "checkpoint-2" / "trainer_state.json").read_text()
    assert "secret-token" not in text
    arguments = json.loads(text)["stateful_callbacks"]["MonitorCallback"]["args"]
    again = MonitorCallback(**arguments)
    assert again.state()["args"]["notify"] == {"email": {"to": "a@b.c", "host": "h"}, "least": "page"}
    assert again.state()["args"]["actions"] == {"page": ["escalate"]}


@pytest.fixture
def lightning():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("lightning.pytorch")


def fit(lightning, folder, callbacks, checkpoints=False):
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
            self.losses = []

        def training_step(self, rows, index):
            loss = self.net(rows).square().mean() * (math.nan if self.global_step == 5 else 1.0)
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    model = Module()
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        callbacks=callbacks,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=checkpoints,
        default_root_dir=str(folder),
        logger=False,
    )
    trainer.fit(model, torch.utils.data.DataLoader([batch(seed)[0] for seed in range(60)], batch_size=1))
    return trainer, model


def lightning_callback(folder, lightning):
    from vario.integrations.lightning import MonitorCallback

    class Waiting(lightning.Callback):
        def on_train_batch_end(self, *args):
            watching.monitor.wait()

    watching = MonitorCallback(print_model_summary=False, directory=str(folder / "runs"), strict=True, actions=ACTIONS)
    return [watching, Waiting()]


@pytest.mark.filterwarnings("ignore")  # what Lightning thinks of workers, loggers and folders
def test_lightning_saves_and_stops_after_a_nan_and_its_losses_are_as_without(tmp_path, lightning):
    trainer, model = fit(lightning, tmp_path, lightning_callback(tmp_path, lightning))
    assert 9 <= trainer.global_step <= 12
    (saved,) = tmp_path.glob("*.ckpt")
    assert saved.name == f"incident-step={trainer.global_step}.ckpt"
    assert torch.load(saved, weights_only=False)["global_step"] == trainer.global_step
    _, bare = fit(lightning, tmp_path, [])
    assert model.losses[:5] == bare.losses[:5]
    assert len(bare.losses) == 60


@pytest.mark.filterwarnings("ignore")
def test_lightning_saves_where_its_own_checkpoints_go(tmp_path, lightning):
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(dirpath=str(tmp_path / "kept"))
    fit(lightning, tmp_path, [*lightning_callback(tmp_path, lightning), saving], checkpoints=True)
    assert len(list((tmp_path / "kept").glob("incident-*.ckpt"))) == 1


def test_a_loop_of_an_accelerator_asks_the_monitor(tmp_path):
    from vario.integrations.accelerate import watch

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Perceptron(dropout=0.0)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))
    monitor = watch(accelerator, model, optimizer, directory=str(tmp_path), strict=True, actions=ACTIONS)
    saved = []
    for step in range(40):
        loss = model(batch(step)).square().mean() * (math.nan if step == 5 else 1.0)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        monitor.wait()
        if monitor.should_checkpoint:
            accelerator.save_state(str(tmp_path / "state"))
            saved.append(step)
        if monitor.should_stop:
            break
    accelerator.end_training()
    assert saved == [step]
    assert 8 <= step <= 11
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
