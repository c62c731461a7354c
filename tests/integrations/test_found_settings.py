"""Hyper-parameters that trainers have anyway, found by MonitorCallback."""

import pytest
import torch
from tiny_trainer import made
from torch import nn

import vario

pytestmark = pytest.mark.filterwarnings("ignore")


def test_arguments_of_a_trainer_are_hyper_parameters(tmp_path):
    callback = vario.MonitorCallback(directory=str(tmp_path), name="hf", params={"seed": 5}, strict=True)
    made(tmp_path, [callback], max_steps=2, learning_rate=0.003, hub_token="secret").train()
    run = vario.open_run(tmp_path / "hf")
    assert run.params["learning_rate"] == 0.003
    assert run.params["per_device_train_batch_size"] == 4
    assert run.params["seed"] == 5
    assert run.param_sources["learning_rate"] == "TrainingArguments"
    assert run.params["optimizer"].startswith("AdamW")
    # With the schedule of the Trainer the rate has changed by then.
    assert run.params["optimizer.lr"] == 0.003
    assert not any(name.endswith(("_dir", "token")) for name in run.params)
    assert "secret" not in (run.path / "run.json").read_text()


def test_hyper_parameters_of_a_lightning_module_are_found(tmp_path):
    import lightning.pytorch as package

    from vario.integrations.lightning import MonitorCallback

    class Small(package.LightningModule):
        def __init__(self, width=3, rate=0.5):
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Linear(4, width)

        def training_step(self, rows, index):
            return self.net(rows).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.hparams.rate)

    trainer = package.Trainer(
        max_steps=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        callbacks=[MonitorCallback(directory=str(tmp_path), name="small", strict=True)],
    )
    trainer.fit(Small(width=2), torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4))
    run = vario.open_run(tmp_path / "small")
    assert (run.params["width"], run.params["rate"], run.params["optimizer.lr"]) == (2, 0.5, 0.5)
    assert run.param_sources["width"] == "lightning"


def test_the_fingerprint_of_a_dataset_is_kept(tmp_path):
    class Rows(list):
        """What the Trainer sees of a dataset of Hugging Face's datasets."""

        _fingerprint, num_rows = "3f2a", 64

    callback = vario.MonitorCallback(directory=str(tmp_path), name="hf", strict=True)
    trainer = made(tmp_path, [callback], max_steps=2)
    trainer.train_dataset = Rows(trainer.train_dataset)
    trainer.train()
    run = vario.open_run(tmp_path / "hf")
    assert (run.params["dataset.fingerprint"], run.params["dataset.rows"]) == ("3f2a", 64)
    assert run.param_sources["dataset.rows"] == "dataset"
