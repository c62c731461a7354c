"""Actor-critic: actions come from forward passes with gradients on, and one update ends each episode."""

import torch
from torch import nn
from torch.distributions import Categorical


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.action, self.value = nn.Linear(4, 32), nn.Linear(32, 2), nn.Linear(32, 1)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return self.action(hidden).softmax(-1), self.value(hidden)


torch.manual_seed(0)
model = Policy()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(40):
    state, kept, rewards = torch.randn(4) * 0.1, [], []
    for _ in range(int(torch.randint(5, 15, ()))):
        shares, value = model(state)
        choice = Categorical(shares)
        action = choice.sample()
        kept.append((choice.log_prob(action), value))
        state = 0.9 * state + 0.1 * torch.randn(4) + (0.1 if action else -0.1)
        rewards.append(1.0 - state.abs().sum().item())
    total, returns = 0.0, []
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        returns.insert(0, total)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-6)
    losses = [
        -log * (wanted - value.item()) + nn.functional.smooth_l1_loss(value, wanted.reshape(1))
        for (log, value), wanted in zip(kept, returns, strict=True)
    ]
    loss = torch.stack(losses).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 40)
