"""Loops of a fifth round: agents in small worlds, as one-file implementations write them.

Written before anybody looked at what rules say of them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import mlp

Tensor = torch.Tensor


class Pole:
    """A few poles on carts, pushed left or right; a fallen one starts again."""

    size, actions = 4, 2

    def __init__(self, num: int = 1) -> None:
        self.state = (torch.rand(num, 4) - 0.5) / 10
        self.time = torch.zeros(num)

    def push(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        place, speed, angle, turn = self.state.unbind(1)
        force = (action.float() * 2 - 1) * 10 + 0.05 * turn**2 * angle.sin()
        swing = (9.8 * angle.sin() - angle.cos() * force / 1.1) / (0.5 * (4 / 3 - 0.1 * angle.cos() ** 2 / 1.1))
        pull = force / 1.1 - 0.05 * swing * angle.cos() / 1.1
        after = torch.stack([place + 0.02 * speed, speed + 0.02 * pull, angle + 0.02 * turn, turn + 0.02 * swing], 1)
        self.time += 1
        done = (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > 0.21) | (self.time >= 200)
        self.time[done] = 0
        self.state = torch.where(done[:, None], (torch.rand_like(after) - 0.5) / 10, after)
        return after, torch.ones(len(after)), done.float()


class Swing:
    """A few pendulums to be swung up by a bounded torque."""

    size, actions = 3, 1

    def __init__(self, num: int = 1) -> None:
        self.angle, self.turn = (torch.rand(num) * 2 - 1) * math.pi, torch.rand(num) * 2 - 1
        self.time = 0

    @property
    def state(self) -> Tensor:
        return torch.stack([self.angle.cos(), self.angle.sin(), self.turn], 1)

    def push(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        force = action[:, 0].clamp(-1, 1) * 2
        off = (self.angle + math.pi) % (2 * math.pi) - math.pi
        reward = -(off**2 + 0.1 * self.turn**2 + 0.001 * force**2)
        self.turn = (self.turn + 0.05 * (15 * self.angle.sin() + 3 * force)).clamp(-8, 8)
        self.angle = self.angle + 0.05 * self.turn
        after, self.time = self.state, self.time + 1
        if self.time % 100 == 0:
            self.angle, self.turn = (torch.rand_like(off) * 2 - 1) * math.pi, torch.rand_like(off) * 2 - 1
        return after, reward, torch.zeros_like(reward)


class Replay:
    """The last few thousand transitions."""

    def __init__(self, *widths: int, room: int = 3000) -> None:
        self.parts = [torch.zeros(room, width) for width in widths]
        self.seen, self.room = 0, room

    def add(self, *rows: Tensor) -> None:
        for part, row in zip(self.parts, rows, strict=True):
            part[torch.arange(self.seen, self.seen + len(row)) % self.room] = row.view(len(row), -1)
        self.seen += len(rows[0])

    def draw(self, size: int) -> Sequence[Tensor]:
        at = torch.randint(0, min(self.seen, self.room), (size,))
        return [part[at] for part in self.parts]


def follow(target: nn.Module, online: nn.Module, share: float) -> None:
    """Move a target network towards the online one."""
    with torch.no_grad():
        for old, new in zip(target.parameters(), online.parameters(), strict=True):
            old.lerp_(new, share)


def layer(before: int, after: int, scale: float = 2**0.5) -> nn.Linear:
    """A linear layer with orthogonal weights and no bias yet."""
    made = nn.Linear(before, after)
    nn.init.orthogonal_(made.weight, scale)
    nn.init.zeros_(made.bias)
    return made


@loop(2000, double={"is_double": True})
def fifth_deep_q_pole(watch: Watch, steps: int, is_double: bool = False) -> None:
    """DQN: random play first, exploration that falls, an update every other move, a copy every 250 updates."""
    q = mlp(4, 48, 32, 2)
    target = copy.deepcopy(q)
    adam = torch.optim.Adam(q.parameters(), lr=2.5e-4)
    world, memory, done = Pole(), Replay(4, 1, 1, 4, 1), 0
    with watch(q, adam) as monitor:
        for move in range(2 * steps + 300):
            state = world.state
            is_random = torch.rand(()) < max(0.05, 1 - move / steps)
            with torch.no_grad():
                action = torch.randint(0, 2, (1,)) if is_random else q(state).argmax(1)
            after, reward, over = world.push(action)
            memory.add(state, action.float(), reward, after, over)
            if move < 300 or move % 2:
                continue
            states, actions, rewards, afters, overs = memory.draw(64)
            with torch.no_grad():
                best = (q if is_double else target)(afters).argmax(1, keepdim=True)
                wanted = rewards + 0.99 * target(afters).gather(1, best) * (1 - overs)
            loss = functional.mse_loss(q(states).gather(1, actions.long()), wanted)
            adam.zero_grad()
            loss.backward()
            adam.step()
            done += 1
            if done % 250 == 0:
                target.load_state_dict(q.state_dict())
            monitor.log(td_loss=loss.item())


@loop(1200)
def fifth_value_distribution(watch: Watch, steps: int) -> None:
    """C51: a distribution of values over fixed atoms, projected, and its cross-entropy."""
    atoms = torch.linspace(-10, 60, 31)
    gap = float(atoms[1] - atoms[0])
    q = mlp(4, 48, 48, 2 * 31)
    target = copy.deepcopy(q)
    adam = torch.optim.Adam(q.parameters(), lr=2.5e-4, eps=0.01 / 64)
    world, memory = Pole(4), Replay(4, 1, 1, 4, 1)
    with watch(q, adam) as monitor:
        for step in range(steps):
            state = world.state
            action = torch.randint(0, 2, (4,))
            after, reward, over = world.push(action)
            memory.add(state, action.float(), reward, after, over)
            states, actions, rewards, afters, overs = memory.draw(64)
            with torch.no_grad():
                chances = target(afters).view(64, 2, 31).softmax(2)
                best = (chances * atoms).sum(2).argmax(1)
                chosen = chances[torch.arange(64), best]
                place = ((rewards + 0.95 * atoms * (1 - overs)).clamp(-10, 60) + 10) / gap
                low, high = place.floor().clamp(0, 30), place.ceil().clamp(0, 30)
                wanted = torch.zeros(64, 31)
                wanted.scatter_add_(1, low.long(), chosen * (high + (low == high).float() - place))
                wanted.scatter_add_(1, high.long(), chosen * (place - low))
            logs = q(states).view(64, 2, 31).log_softmax(2)[torch.arange(64), actions[:, 0].long()]
            loss = -(wanted * logs).sum(1).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            if step % 200 == 199:
                target.load_state_dict(q.state_dict())
            monitor.log(loss=loss.item())


@loop(1500, twin={"is_twin": True})
def fifth_deterministic_policy(watch: Watch, steps: int, is_twin: bool = False) -> None:
    """DDPG, and TD3: two critics, noise on the target's actions, and an update of the actor at every other step."""
    actor = nn.Sequential(mlp(3, 32, 32, 1), nn.Tanh())
    critics = nn.ModuleList(mlp(4, 32, 32, 1) for _ in range(1 + is_twin))
    old_actor, old_critics = copy.deepcopy(actor), copy.deepcopy(critics)
    q_adam = torch.optim.Adam(critics.parameters(), lr=1e-3)
    own_adam = torch.optim.Adam(actor.parameters(), lr=3e-4)
    world, memory = Swing(2), Replay(3, 1, 1, 3, 1)
    for _ in range(150):
        state, action = world.state, torch.rand(2, 1) * 2 - 1
        after, reward, over = world.push(action)
        memory.add(state, action, reward, after, over)
    with watch(nn.ModuleDict({"actor": actor, "critics": critics}), [q_adam, own_adam]) as monitor:
        for step in range(steps):
            state = world.state
            with torch.no_grad():
                action = (actor(state) + 0.1 * torch.randn(2, 1)).clamp(-1, 1)
            after, reward, over = world.push(action)
            memory.add(state, action, reward, after, over)
            states, actions, rewards, afters, overs = memory.draw(64)
            with torch.no_grad():
                noise = (0.2 * torch.randn(64, 1)).clamp(-0.5, 0.5) if is_twin else 0.0
                chosen = (old_actor(afters) + noise).clamp(-1, 1)
                values = torch.stack([critic(torch.cat([afters, chosen], 1)) for critic in old_critics])
                wanted = rewards + 0.95 * (1 - overs) * values.amin(0)
            error = torch.stack(
                [functional.mse_loss(critic(torch.cat([states, actions], 1)), wanted) for critic in critics]
            ).sum()
            q_adam.zero_grad()
            error.backward()
            q_adam.step()
            numbers = {"qf_loss": error.item()}
            if step % 2 == 0:
                own = -critics[0](torch.cat([states, actor(states)], 1)).mean()
                own_adam.zero_grad()
                own.backward()
                own_adam.step()
                follow(old_actor, actor, 0.005)
                follow(old_critics, critics, 0.005)
                numbers["actor_loss"] = own.item()
            monitor.log(**numbers)


@loop(1500, tuned={"is_tuned": True})
def fifth_soft_swing(watch: Watch, steps: int, is_tuned: bool = False) -> None:
    """SAC: two critics, a squashed actor, and a temperature that may be tuned."""
    actor, critics = mlp(3, 32, 32, 2), nn.ModuleList(mlp(4, 32, 32, 1) for _ in range(2))
    old, heat = copy.deepcopy(critics), nn.Parameter(torch.zeros(1))
    q_adam = torch.optim.Adam(critics.parameters(), lr=1e-3)
    own_adam, heat_adam = torch.optim.Adam(actor.parameters(), lr=3e-4), torch.optim.Adam([heat], lr=1e-3)
    world, memory = Swing(2), Replay(3, 1, 1, 3, 1)

    def act(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, log = actor(state).chunk(2, 1)
        choice = Normal(mean, (-5 + 3.5 * (log.tanh() + 1)).exp())
        raw = choice.rsample()
        return raw.tanh(), (choice.log_prob(raw) - (1 - raw.tanh() ** 2 + 1e-6).log()).sum(1, keepdim=True)

    model = nn.ModuleDict({"actor": actor, "critics": critics})
    with watch(model, [q_adam, own_adam]) as monitor:
        for step in range(steps):
            state = world.state
            with torch.no_grad():
                action = act(state)[0]
            after, reward, over = world.push(action)
            memory.add(state, action, reward, after, over)
            states, actions, rewards, afters, overs = memory.draw(48)
            warmth = heat.exp().detach() if is_tuned else torch.tensor(0.2)
            with torch.no_grad():
                chosen, log = act(afters)
                values = torch.stack([critic(torch.cat([afters, chosen], 1)) for critic in old]).amin(0)
                wanted = rewards + 0.95 * (1 - overs) * (values - warmth * log)
            both = [functional.mse_loss(critic(torch.cat([states, actions], 1)), wanted) for critic in critics]
            q_adam.zero_grad()
            torch.stack(both).sum().backward()
            q_adam.step()
            if step % 2 == 0:
                for _ in range(2):
                    chosen, log = act(states)
                    values = torch.stack([critic(torch.cat([states, chosen], 1)) for critic in critics]).amin(0)
                    own = (warmth * log - values).mean()
                    own_adam.zero_grad()
                    own.backward()
                    own_adam.step()
                    if is_tuned:
                        heat_adam.zero_grad()
                        (-heat.exp() * (log.detach() - 1)).mean().backward()
                        heat_adam.step()
            follow(old, critics, 0.005)
            monitor.log(qf_loss=(both[0] + both[1]).item() / 2)


@loop(1280, value={"is_value_clipped": True}, kept={"is_annealed": False})
def fifth_annealed_ppo(watch: Watch, steps: int, is_value_clipped: bool = False, is_annealed: bool = True) -> None:
    """PPO on poles: orthogonal weights, generalised advantages, a rate on a line to zero, four epochs."""
    actor = nn.Sequential(layer(4, 32), nn.Tanh(), layer(32, 32), nn.Tanh(), layer(32, 2, 0.01))
    critic = nn.Sequential(layer(4, 32), nn.Tanh(), layer(32, 32), nn.Tanh(), layer(32, 1, 1.0))
    model = nn.ModuleDict({"critic": critic, "actor": actor})
    adam = torch.optim.Adam(model.parameters(), lr=2.5e-4, eps=1e-5)
    world, done = Pole(4), 0
    with watch(model, adam) as monitor:
        while done < steps:
            if is_annealed:
                adam.param_groups[0]["lr"] = 2.5e-4 * (1 - done / steps)
            kept = []
            with torch.no_grad():
                for _ in range(32):
                    state = world.state
                    choice = Categorical(logits=actor(state))
                    action = choice.sample()
                    _, reward, over = world.push(action)
                    kept.append((state, action, choice.log_prob(action), reward, over, critic(state)[:, 0]))
                states, actions, logs, rewards, overs, values = (torch.stack(part) for part in zip(*kept, strict=True))
                ahead, gain = critic(world.state)[:, 0], torch.zeros(4)
                gains = torch.zeros_like(rewards)
                for at in reversed(range(32)):
                    error = rewards[at] + 0.99 * ahead * (1 - overs[at]) - values[at]
                    gain = error + 0.99 * 0.95 * (1 - overs[at]) * gain
                    gains[at], ahead = gain, values[at]
            states, actions, logs = states.flatten(0, 1), actions.flatten(), logs.flatten()
            before, gains = values.flatten(), gains.flatten()
            wanted = gains + before
            for _ in range(4):
                for at in torch.randperm(128).split(32):
                    choice = Categorical(logits=actor(states[at]))
                    ratio = (choice.log_prob(actions[at]) - logs[at]).exp()
                    own = (gains[at] - gains[at].mean()) / (gains[at].std() + 1e-8)
                    policy = torch.max(-own * ratio, -own * ratio.clamp(0.8, 1.2)).mean()
                    value = critic(states[at])[:, 0]
                    error = (value - wanted[at]) ** 2
                    if is_value_clipped:
                        near = before[at] + (value - before[at]).clamp(-0.2, 0.2)
                        error = torch.max(error, (near - wanted[at]) ** 2)
                    loss = policy + 0.25 * error.mean() - 0.01 * choice.entropy().mean()
                    adam.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    adam.step()
                    done += 1
                    monitor.log(value_loss=error.mean().item(), policy_loss=policy.item())


@loop(800)
def fifth_episodes(watch: Watch, steps: int) -> None:
    """REINFORCE: an update for each episode, whose length grows from ten moves as the policy learns."""
    policy = nn.Sequential(nn.Linear(4, 48), nn.Dropout(0.4), nn.ReLU(), nn.Linear(48, 2))
    adam = torch.optim.Adam(policy.parameters(), lr=1e-3)
    with watch(policy, adam) as monitor:
        for _ in range(steps):
            world, states, actions = Pole(), [], []
            for _move in range(40):
                with torch.no_grad():
                    action = Categorical(logits=policy(world.state)).sample()
                states.append(world.state)
                actions.append(action)
                if world.push(action)[2].item():
                    break
            returns = torch.arange(len(states), 0, -1).float()
            returns = (returns - returns.mean()) / (returns.std() + 1e-7)
            logs = Categorical(logits=policy(torch.cat(states))).log_prob(torch.cat(actions))
            loss = -(logs * returns).sum()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item(), length=len(states))
