"""The best model so far is kept by deepcopy, and copies are used, trained on and pickled."""

import copy
import pickle

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
teacher = torch.randn(8, 1)
best, lowest = None, float("inf")
for step in range(40):
    x = torch.randn(32, 8)
    loss = nn.functional.mse_loss(model(x), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    if loss.item() < lowest:
        lowest, best = loss.item(), copy.deepcopy(model)
    if step == 20:
        twin = copy.deepcopy((model, optimizer))
        print("state", sorted(twin[0].__dict__), sorted(twin[0][0].__dict__))
        print("hooks", [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in twin[0].modules()])
with torch.no_grad():
    x = torch.randn(64, 8)
    print("best", nn.functional.mse_loss(best.eval()(x), x @ teacher).item().hex())
    again = pickle.loads(pickle.dumps(best))
    print("again", nn.functional.mse_loss(again(x), x @ teacher).item().hex(), len(pickle.dumps(best)))
print("steps", 40)
