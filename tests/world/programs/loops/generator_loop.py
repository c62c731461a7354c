"""A trainer class whose loop is a generator, with the validation between two yields and slots instead of attributes."""

import torch
from torch import nn


class Trainer:
    __slots__ = ("model", "optimizer", "teacher")

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
        self.optimizer = torch.optim.RMSprop(self.model.parameters(), lr=1e-3)
        self.teacher = torch.randn(8, 1)

    def __iter__(self):
        while True:
            x = torch.randn(32, 8)
            loss = nn.functional.mse_loss(self.model(x), x @ self.teacher)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            yield loss.item()

    def validate(self):
        x = torch.randn(64, 8)
        return nn.functional.mse_loss(self.model(x), x @ self.teacher).item()


torch.manual_seed(0)
trainer = Trainer()
for step, loss in zip(range(40), trainer, strict=False):
    print("loss", loss.hex())
    if step % 10 == 9:
        print("validation", trainer.validate().hex())
print("steps", 40)
