"""skorch inside scikit-learn's GridSearchCV: many small trainings, one after the other."""

import numpy as np
import torch
from sklearn.model_selection import GridSearchCV
from skorch import NeuralNetRegressor
from torch import nn


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x)


torch.manual_seed(0)
np.random.seed(0)
x = np.random.randn(96, 8).astype(np.float32)
y = x[:, :1] * 2 - x[:, 1:2]
net = NeuralNetRegressor(Net, max_epochs=4, batch_size=16, train_split=None, verbose=0, optimizer=torch.optim.Adam)
search = GridSearchCV(net, {"module__width": [8, 16], "lr": [1e-3, 1e-2]}, cv=3, scoring="neg_mean_squared_error")
search.fit(x, y)
print("scores", [float(score).hex() for score in search.cv_results_["mean_test_score"]])
# Twelve fits of four epochs with four batches, and the last one on all rows.
print("steps", 12 * 4 * 4 + 4 * 6)
