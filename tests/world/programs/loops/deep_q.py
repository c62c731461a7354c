"""Deep Q-learning with a replay buffer; the target network is a copy that is renewed every 20 updates."""

import random

import torch
from torch import nn

torch.manual_seed(0)
random.seed(0)
policy = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, amsgrad=True)
replay, state, steps = [], torch.zeros(4), 0
for tick in range(160):
    if random.random() < 0.3:
        action = random.randrange(2)
    else:
        with torch.no_grad():
            action = int(policy(state.unsqueeze(0)).argmax())
    following = 0.9 * state + 0.2 * torch.randn(4) + (0.1 if action else -0.1)
    reward = -following.abs().sum().item()
    replay.append((state, action, reward, following))
    state = following if tick % 25 else torch.zeros(4)
    if len(replay) < 32:
        continue
    chosen = random.sample(replay, 32)
    states, followings = torch.stack([row[0] for row in chosen]), torch.stack([row[3] for row in chosen])
    actions, rewards = torch.tensor([[row[1]] for row in chosen]), torch.tensor([row[2] for row in chosen])
    with torch.no_grad():
        wanted = rewards + 0.9 * target(followings).amax(1)
    loss = nn.functional.smooth_l1_loss(policy(states).gather(1, actions).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    steps += 1
    if steps % 20 == 0:
        target.load_state_dict(policy.state_dict())
    print("loss", loss.item().hex())
print("steps", steps)
