"""The trainers' callbacks where `VARIO=off` or `enabled=False` says that nothing is watched."""

import importlib

import pytest
import torch
from accelerate import Accelerator
from tiny_trainer import history, made

import vario
from models import Perceptron, batch
from vario.training.idle import IdleMonitor


@pytest.fixture(params=["environment", "option"])
def options(request, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if request.param == "environment":
        monkeypatch.setenv("VARIO", "off")
        return {}
    return {"enabled": False}


def test_a_trainer_trains_and_saves_as_without_the_callback(options, tmp_path, capsys):
    callback = vario.MonitorCallback(check_gradients=True, predict_memory=True, **options)
    watched = made(tmp_path, [callback], save_strategy="steps", save_steps=3)
    watched.train()
    plain = made(tmp_path / "plain", [])
    plain.train()
    assert history(watched, "loss") == history(plain, "loss")
    assert (callback.path, type(callback.monitor)) == (None, IdleMonitor)
    assert "parameters" not in capsys.readouterr().out
    assert not (tmp_path / "vario_runs").exists()
    resumed = made(tmp_path, [vario.MonitorCallback(**options)], save_strategy="steps", save_steps=3)
    resumed.train(resume_from_checkpoint=True)


@pytest.mark.filterwarnings("ignore")  # what Lightning thinks of workers, loggers and folders
def test_lightning_fits_as_without_the_callback(options, tmp_path, capsys):
    lightning = importlib.import_module("lightning.pytorch")
    from vario.integrations.lightning import MonitorCallback

    class Small(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)

        def training_step(self, rows, index):
            return self.net(rows).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = MonitorCallback(predict_memory=True, **options)
    trainer = lightning.Trainer(
        max_steps=3, accelerator="cpu", callbacks=[callback], logger=False, enable_progress_bar=False
    )
    trainer.fit(Small(), torch.utils.data.DataLoader(torch.randn(6, 4), batch_size=2))
    assert trainer.global_step == 3
    assert (callback.path, type(callback.monitor)) == (None, IdleMonitor)
    assert not (tmp_path / "vario_runs").exists()


def test_an_accelerator_still_knows_where_its_numbers_would_go(options, tmp_path):
    from vario.integrations.accelerate import watch

    accelerator = Accelerator(cpu=True)
    model = Perceptron()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    monitor = watch(accelerator, model, optimizer, check_gradients=True, **options)
    accelerator.backward(model(batch(0)).square().mean())
    optimizer.step()
    accelerator.log({"loss": 1.0})
    assert accelerator.get_tracker("vario", unwrap=True) is monitor
    accelerator.end_training()
    assert not (tmp_path / "vario_runs").exists()
