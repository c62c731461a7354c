"""skorch: a classifier fitted with its own validation split, early stopping and restored best weights."""

import numpy as np
import torch
from skorch import NeuralNetClassifier
from skorch.callbacks import EarlyStopping, GradientNormClipping
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
centers = np.random.randn(3, 8)
y = np.random.randint(0, 3, 200)
x = (centers[y] + 0.7 * np.random.randn(200, 8)).astype(np.float32)
net = NeuralNetClassifier(
    nn.Sequential,
    module__args=None,
    max_epochs=8,
    lr=0.05,
    batch_size=32,
    criterion=nn.CrossEntropyLoss,
    optimizer=torch.optim.SGD,
    optimizer__momentum=0.9,
    callbacks=[EarlyStopping(patience=3), GradientNormClipping(1.0)],
    verbose=0,
)
net.set_params(module=lambda **_: nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)))
net.fit(x, y.astype(np.int64))
batches = [row for epoch in net.history for row in epoch["batches"] if "train_loss" in row]
for row in batches:
    print("loss", float(row["train_loss"]).hex())
print("validation", *[float(epoch["valid_loss"]).hex() for epoch in net.history])
print("steps", len(batches))
