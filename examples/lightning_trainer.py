"""Watch Lightning's Trainer with a MonitorCallback: a small network learns to add its inputs.

python examples/lightning_trainer.py && vario report
"""

import lightning
import torch

import vario
from vario.integrations.lightning import MonitorCallback


class Adder(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))

    def step(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.net(rows), rows.sum(1, keepdim=True))

    def training_step(self, rows: torch.Tensor, index: int) -> torch.Tensor:
        loss = self.step(rows)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, rows: torch.Tensor, index: int) -> None:
        self.log("val_loss", self.step(rows))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    torch.manual_seed(0)
    batches = torch.utils.data.DataLoader(torch.randn(640, 8), batch_size=32)
    watching = MonitorCallback(check_gradients=True, gradient_check_steps=10, every=1)
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        callbacks=[watching],
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Adder(), batches, batches)

    run = vario.open_run(watching.path)
    losses = run.series("val_loss", "scalar")
    by_step = dict(zip(losses.steps.tolist(), losses.values.round(2).tolist(), strict=True))
    print(f"{run.path}: validation loss by step: {by_step}")
    print("first NaN or Inf:", vario.first_bad(run))


if __name__ == "__main__":
    main()
