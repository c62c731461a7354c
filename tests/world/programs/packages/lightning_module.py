"""Lightning: a module with validation, accumulation and gradient clipping."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.mse_loss(self.layers(x), y)
        self.log("train_loss", loss)
        print("losses", loss.item().hex())
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("validation_loss", nn.functional.mse_loss(self.layers(x), y))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)]


lightning.seed_everything(0, verbose=False)
x = torch.randn(96, 8)
y = x[:, :1] * x[:, 1:2]
trainer = lightning.Trainer(
    max_epochs=8,
    accumulate_grad_batches=2,
    gradient_clip_val=1.0,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
rows = DataLoader(TensorDataset(x[:80], y[:80]), batch_size=16)
trainer.fit(Net(), rows, DataLoader(TensorDataset(x[80:], y[80:]), batch_size=16))
print("validation", trainer.callback_metrics["validation_loss"].item().hex())
print("steps", trainer.global_step)
