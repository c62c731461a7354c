"""pytorch-ignite: a supervised trainer and evaluator, with a running average and a scheduler of its own."""

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import CosineAnnealingScheduler, EMAHandler
from ignite.metrics import Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x[:, :1] * x[:, 1:2]
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
trainer = create_supervised_trainer(model, optimizer, nn.functional.mse_loss)
evaluator = create_supervised_evaluator(model, {"loss": Loss(nn.functional.mse_loss)})
trainer.add_event_handler(Events.ITERATION_STARTED, CosineAnnealingScheduler(optimizer, "lr", 0.05, 0.005, 50))
EMAHandler(model, momentum=0.1).attach(trainer)


@trainer.on(Events.ITERATION_COMPLETED)
def tell(engine):
    print("loss", float(engine.state.output).hex())


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    print("validation", float(evaluator.run(loader).metrics["loss"]).hex())


trainer.run(loader, max_epochs=10)
print("steps", trainer.state.iteration)
