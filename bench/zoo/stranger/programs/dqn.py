"""Deep Q-learning on a small grid: replay, a target network, Huber loss; short steps."""

from __future__ import annotations

import copy
import random

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

SIZE, ACTIONS = 6, 4
MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))


class Grid:
    """Walk to the goal; pits end the episode."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.pits = {(2, 2), (3, 1), (4, 4)}
        self.restart()

    def restart(self) -> None:
        self.place = (self.draw.randrange(2), self.draw.randrange(SIZE))
        self.age = 0

    def seen(self) -> Tensor:
        x, y = self.place
        state = torch.zeros(2 * SIZE + 1)
        state[x], state[SIZE + y], state[-1] = 1.0, 1.0, self.age / 40
        return state

    def act(self, action: int) -> tuple[float, bool]:
        x, y = self.place[0] + MOVES[action][0], self.place[1] + MOVES[action][1]
        self.place = (min(max(x, 0), SIZE - 1), min(max(y, 0), SIZE - 1))
        self.age += 1
        if self.place in self.pits:
            return -1.0, True
        if self.place == (SIZE - 1, SIZE - 1):
            return 1.0, True
        return -0.02, self.age >= 40


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2 * SIZE + 1, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, ACTIONS))


def main() -> None:
    job = Job(
        steps=400,
        faults=["target-follows", "target-stale", "reward-times-100", "replay-stuck", "ends-ignored"],
    )
    grid, model = Grid(job.seed), network()
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    memory: list[tuple[Tensor, int, float, Tensor, bool]] = []
    choose = random.Random(job.seed + 1)
    for step in range(-60, job.steps):
        for _ in range(3):
            state = grid.seen()
            explore = max(0.1, 1 - (step + 60) / 200)
            if choose.random() < explore:
                action = choose.randrange(ACTIONS)
            else:
                with torch.no_grad():
                    action = int(model(state).argmax())
            reward, ended = grid.act(action)
            if job.on("reward-times-100", step):
                reward *= 100
            if job.on("ends-ignored", step):
                memory.append((state, action, reward, grid.seen(), False))
            else:
                memory.append((state, action, reward, grid.seen(), ended))
            if ended:
                grid.restart()
        memory = memory[-1500:]
        if step < 0:
            continue
        pool = memory[:40] if job.on("replay-stuck", step) else memory
        states, actions, rewards, after, ends = zip(*choose.choices(pool, k=32), strict=True)
        with torch.no_grad():
            future = target(torch.stack(after)).max(1).values
            goal = torch.tensor(rewards) + 0.95 * future * (1 - torch.tensor(ends, dtype=torch.float))
        value = model(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])[:, 0]
        loss = F.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        if job.on("target-follows", step) or (step % 50 == 0 and not job.on("target-stale", step)):
            target.load_state_dict(model.state_dict())
        job.log(step, loss.item(), value=value.mean().item())
    job.finish(model)


if __name__ == "__main__":
    main()
