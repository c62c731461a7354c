"""The whole model is saved while it trains, read back by torch.load both ways, and training goes on from it."""

import hashlib
import io

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(8, 16, batch_first=True)
        self.out = nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
safe = [Net, nn.GRU, nn.Linear]
for epoch in range(4):
    for _ in range(10):
        x = torch.randn(16, 5, 8)
        loss = nn.functional.mse_loss(model(x), x.sum((1, 2)).unsqueeze(1) / 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
    kept = io.BytesIO()
    torch.save(model, kept)
    print("saved", len(kept.getvalue()), hashlib.sha256(kept.getvalue()).hexdigest()[:16])
    kept.seek(0)
    with torch.serialization.safe_globals(safe):
        again = torch.load(kept, weights_only=True)
    kept.seek(0)
    unsafe = torch.load(kept, weights_only=False)
    with torch.no_grad():
        print("same", torch.equal(again(x), model(x)), torch.equal(unsafe(x), model(x)))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    print("keys", list(state["model"]), sorted(state["optimizer"]))
    kept = io.BytesIO()
    torch.save(state, kept)
    kept.seek(0)
    state = torch.load(kept)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
print("steps", 40)
