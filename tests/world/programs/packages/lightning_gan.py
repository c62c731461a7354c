"""Lightning with manual optimization: a GAN with toggled optimizers."""

import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class GAN(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def training_step(self, batch, number):
        (real,) = batch
        first, second = self.optimizers()
        judge = nn.functional.binary_cross_entropy_with_logits
        self.toggle_optimizer(first)
        found = self.discriminator(self.generator(torch.randn(len(real), 4)))
        loss_g = judge(found, torch.ones_like(found))
        self.manual_backward(loss_g)
        first.step()
        first.zero_grad()
        self.untoggle_optimizer(first)
        self.toggle_optimizer(second)
        true, fake = self.discriminator(real), self.discriminator(self.generator(torch.randn(len(real), 4)).detach())
        loss_d = judge(true, torch.ones_like(true)) + judge(fake, torch.zeros_like(fake))
        self.manual_backward(loss_d)
        second.step()
        second.zero_grad()
        self.untoggle_optimizer(second)
        print("losses", loss_g.item().hex(), loss_d.item().hex())

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.generator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
            torch.optim.Adam(self.discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999)),
        ]


lightning.seed_everything(0, verbose=False)
loader = DataLoader(TensorDataset(torch.randn(160, 2) + 2), batch_size=16, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=5,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(GAN(), loader)
print("steps", 50)
