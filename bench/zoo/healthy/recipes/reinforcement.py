"""Policies and values: objectives without a level, target networks, several epochs over the same rows."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import mlp

Tensor = torch.Tensor


def _rollout(policy: nn.Module, length: int = 64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States, actions, log-probabilities and rewards of a drifting point to be held at the origin."""
    state, kept = torch.randn(8, 3) * 0.5, []
    with torch.no_grad():
        for _ in range(length // 8):
            choice = Categorical(logits=policy(state))
            action = choice.sample()
            push = (action.float() - 1).unsqueeze(1) * 0.3
            kept.append((state, action, choice.log_prob(action), -state.abs().sum(1)))
            state = state * 0.95 + push + 0.1 * torch.randn_like(state)
    return tuple(torch.cat(part) for part in zip(*kept, strict=True))  # type: ignore[return-value]


@loop(320, shared={"is_shared": True}, entropy={"entropy": 0.05})
def ppo(watch: Watch, steps: int, is_shared: bool = False, entropy: float = 0.01) -> None:
    """PPO: four epochs over each rollout, in shuffled minibatches, clipped."""
    body = mlp(3, 32, 32, act=nn.Tanh)
    policy = nn.Sequential(body, nn.Tanh(), nn.Linear(32, 3))
    value = nn.Sequential(body if is_shared else mlp(3, 32, 32, act=nn.Tanh), nn.Tanh(), nn.Linear(32, 1))
    model = nn.ModuleDict({"policy": policy, "value": value})
    adam = torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-5)
    done = 0
    with watch(model, adam) as monitor:
        while done < steps:
            states, actions, before, rewards = _rollout(policy)
            with torch.no_grad():
                gain = rewards - value(states).squeeze(1)
                gain = (gain - gain.mean()) / (gain.std() + 1e-8)
            for _ in range(4):
                for at in torch.randperm(64).split(16):
                    choice = Categorical(logits=policy(states[at]))
                    ratio = (choice.log_prob(actions[at]) - before[at]).exp()
                    own = -torch.min(ratio * gain[at], ratio.clamp(0.8, 1.2) * gain[at]).mean()
                    error = functional.mse_loss(value(states[at]).squeeze(1), rewards[at])
                    loss = own + 0.5 * error - entropy * choice.entropy().mean()
                    adam.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    adam.step()
                    monitor.log(loss=loss.item())
                    done += 1


@loop(300, soft={"is_soft": True})
def deep_q(watch: Watch, steps: int, is_soft: bool = False) -> None:
    """DQN: a replay memory, and a target network inside the watched model that no optimizer holds."""
    online = mlp(3, 32, 32, 3)
    model = nn.ModuleDict({"online": online, "target": copy.deepcopy(online)})
    adam = torch.optim.Adam(online.parameters(), lr=1e-3)
    memory = torch.randn(400, 3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            memory[torch.randint(0, 400, (8,))] = torch.randn(8, 3)
            state = memory[torch.randint(0, 400, (32,))]
            action = torch.randint(0, 3, (32,))
            after = state * 0.9 + (action.float() - 1)[:, None] * 0.3
            with torch.no_grad():
                wanted = -after.abs().sum(1) + 0.9 * model["target"](after).amax(1)
            loss = functional.smooth_l1_loss(online(state).gather(1, action[:, None]).squeeze(1), wanted)
            adam.zero_grad()
            loss.backward()
            adam.step()
            with torch.no_grad():
                if is_soft:
                    for old, new in zip(model["target"].parameters(), online.parameters(), strict=True):
                        old.lerp_(new, 0.01)
                elif step % 50 == 49:
                    model["target"].load_state_dict(online.state_dict())
            monitor.log(loss=loss.item())


@loop(300)
def actor_critic(watch: Watch, steps: int) -> None:
    """One update for each short episode; the critic's last bias is near zero."""
    model = nn.ModuleDict({"body": nn.Linear(3, 24), "action": nn.Linear(24, 3), "value": nn.Linear(24, 1)})
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            state, parts = torch.randn(3) * 0.5, []
            for _ in range(int(torch.randint(4, 10, ()))):
                hidden = torch.relu(model["body"](state))
                choice = Categorical(logits=model["action"](hidden))
                action = choice.sample()
                parts.append((choice.log_prob(action), model["value"](hidden).squeeze(), -state.abs().sum()))
                state = 0.9 * state + (action - 1) * 0.3 + 0.1 * torch.randn(3)
            total, losses = torch.tensor(0.0), []
            for log, value, reward in reversed(parts):
                total = reward + 0.95 * total
                losses.append(-log * (total - value.detach()) + functional.smooth_l1_loss(value, total))
            loss = torch.stack(losses).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(300)
def soft_actor_critic(watch: Watch, steps: int) -> None:
    """SAC: three optimizers in a step, a temperature that is learned, averaged targets."""
    actor, critic = mlp(3, 32, 2), mlp(4, 32, 1)
    target, heat = copy.deepcopy(critic), nn.Parameter(torch.zeros(1))
    model = nn.Module()
    model.actor, model.critic, model.target, model.heat = actor, critic, target, heat
    adams = [torch.optim.Adam(part, lr=1e-3) for part in (list(actor.parameters()), list(critic.parameters()), [heat])]
    with watch(model, adams) as monitor:
        for _ in range(steps):
            state = torch.randn(32, 3)

            def act(state: Tensor) -> tuple[Tensor, Tensor]:
                mean, log = actor(state).chunk(2, 1)
                choice = Normal(mean, log.clamp(-3, 1).exp())
                raw = choice.rsample()
                return raw.tanh(), choice.log_prob(raw) - (1 - raw.tanh().square() + 1e-6).log()

            with torch.no_grad():
                action, _ = act(state)
                after = state * 0.9 + 0.3 * action
                chosen, log = act(after)
                future = target(torch.cat([after, chosen], 1)) - heat.exp() * log
                wanted = -after.abs().sum(1, keepdim=True) + 0.9 * future
            error = functional.mse_loss(critic(torch.cat([state, action], 1)), wanted)
            adams[1].zero_grad()
            error.backward()
            adams[1].step()
            chosen, log = act(state)
            own = (heat.exp().detach() * log - critic(torch.cat([state, chosen], 1))).mean()
            adams[0].zero_grad()
            own.backward()
            adams[0].step()
            warm = -(heat * (log.detach() - 1)).mean()
            adams[2].zero_grad()
            warm.backward()
            adams[2].step()
            with torch.no_grad():
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.lerp_(new, 0.02)
            monitor.log(loss_critic=error.item(), loss_actor=own.item())


@loop(260)
def preferences(watch: Watch, steps: int) -> None:
    """DPO: a frozen copy beside the policy, and a loss that falls from log 2."""
    policy = mlp(6, 32, 8)
    model = nn.ModuleDict({"policy": policy, "reference": copy.deepcopy(policy).requires_grad_(False)})
    adam = torch.optim.AdamW(policy.parameters(), lr=5e-4)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x = torch.randn(24, 6)
            better = (x[:, 0] > 0).long()
            worse = better + 2
            own = model["policy"](x).log_softmax(1)
            with torch.no_grad():
                fixed = model["reference"](x).log_softmax(1)
            gain = (own - fixed).gather(1, better[:, None]) - (own - fixed).gather(1, worse[:, None])
            loss = -functional.logsigmoid(0.5 * gain).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())
