"""Loops for one last look: written with the fifth round, and shown to rules only after those were mended on it."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.fifth_control import Pole, Swing, layer
from zoo.healthy.recipes.fifth_examples import in_epochs
from zoo.healthy.recipes.fifth_language import Rotary, corpus, grouped, pieces
from zoo.healthy.recipes.samples import Decoder, Table, bars, fit, mlp, next_token_loss, text
from zoo.healthy.recipes.third_models import warm_up

Tensor = torch.Tensor
schedules = torch.optim.lr_scheduler


@loop(1500)
def sixth_text_by_heart(watch: Watch, steps: int) -> None:
    """A rotary model at a constant rate on a short text, until it knows it."""
    model, long = Rotary(), corpus(1200)
    adam = grouped(model, 0.1, 1e-3)

    def loss_of(_: int) -> Tensor:
        ids = pieces(long, 6)
        return next_token_loss(model(ids), ids)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 50), 1.0)


@loop(1500)
def sixth_advantages(watch: Watch, steps: int) -> None:
    """A2C on eight pendulums: five moves for each update, RMSprop, a spread that is learned."""
    body, spread = nn.Sequential(layer(3, 32), nn.Tanh()), nn.Parameter(torch.zeros(1))
    model = nn.ModuleDict({"body": body, "mean": layer(32, 1, 0.01), "value": layer(32, 1, 1.0)})
    model.register_parameter("spread", spread)
    rms = torch.optim.RMSprop(model.parameters(), lr=7e-4, alpha=0.99, eps=1e-5)
    world = Swing(8)
    with watch(model, rms) as monitor:
        for _ in range(steps):
            logs, values, rewards, doubts = [], [], [], []
            for _move in range(5):
                hidden = body(world.state)
                choice = torch.distributions.Normal(model["mean"](hidden), spread.exp())
                action = choice.sample()
                logs.append(choice.log_prob(action)[:, 0])
                doubts.append(choice.entropy().mean())
                values.append(model["value"](hidden)[:, 0])
                rewards.append(world.push(action)[1])
            with torch.no_grad():
                total = model["value"](body(world.state))[:, 0]
            losses = []
            for log, value, reward in zip(reversed(logs), reversed(values), reversed(rewards), strict=True):
                total = reward / 8 + 0.97 * total
                gain = total - value
                losses.append((0.5 * gain**2 - gain.detach() * log).mean())
            loss = torch.stack(losses).mean() - 0.001 * torch.stack(doubts).mean()
            rms.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            rms.step()
            monitor.log(loss=loss.item())


@loop(1200)
def sixth_noisy_nets(watch: Watch, steps: int) -> None:
    """Q-learning with noise in the weights, priorities, and three moves ahead."""

    class Noisy(nn.Linear):
        def __init__(self, before: int, after: int) -> None:
            super().__init__(before, after)
            self.doubt = nn.Parameter(torch.full((after, before), 0.5 / before**0.5))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(x, self.weight + self.doubt * torch.randn_like(self.doubt), self.bias)

    q = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), Noisy(32, 32), nn.ReLU(), Noisy(32, 2))
    target = copy.deepcopy(q)
    adam = torch.optim.Adam(q.parameters(), lr=1e-3, eps=1.5e-4)
    world = Pole(64)
    rows = []
    for _ in range(24):
        state, action = world.state, torch.randint(0, 2, (64,))
        after, reward, over = world.push(action)
        rows.append((state, action, reward, after, over))
    states, actions, rewards, afters, overs = (torch.cat(part) for part in zip(*rows, strict=True))
    weights = torch.ones(len(states))
    with watch(q, adam) as monitor:
        for step in range(steps):
            at = torch.multinomial(weights, 48)
            with torch.no_grad():
                wanted = rewards[at] + 0.95 * (1 - overs[at]) * target(afters[at]).amax(1)
            error = q(states[at]).gather(1, actions[at, None])[:, 0] - wanted
            importance = (weights[at] * len(weights) / weights.sum()) ** -0.5
            loss = (importance / importance.max() * functional.huber_loss(error, 0 * error, reduction="none")).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            weights[at] = error.detach().abs() ** 0.6 + 0.01
            if step % 100 == 99:
                target.load_state_dict(q.state_dict())
            monitor.log(loss=loss.item())


@loop(1000)
def sixth_image_classes(watch: Watch, steps: int) -> None:
    """Depthwise convolutions, squeeze and excitation, label smoothing, RMSprop, an exponential rate, averages."""

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU())
            self.depth = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU())
            self.squeeze = nn.Sequential(nn.Linear(16, 4), nn.SiLU(), nn.Linear(4, 16), nn.Sigmoid())
            self.out = nn.Sequential(nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16))
            self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            hidden = self.depth(x)
            hidden = self.out(hidden * self.squeeze(hidden.mean((2, 3)))[:, :, None, None])
            found: Tensor = self.head((x + hidden).mean((2, 3)))
            return found

    model = Small()
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99))
    rms = torch.optim.RMSprop(model.parameters(), lr=2e-3, alpha=0.9, momentum=0.9, weight_decay=1e-5, eps=1e-3)
    batches = in_epochs(bars(900), 24)

    def loss_of(_: int) -> Tensor:
        x, y = next(batches)
        x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x, x.roll(1, 2)) + 0.3 * torch.randn_like(x)
        return functional.cross_entropy(model(x), y, label_smoothing=0.1)

    fit(watch, model, rms, loss_of, steps, schedules.ExponentialLR(rms, 0.999), 0.0,
        lambda _: averaged.update_parameters(model))  # fmt: skip


@loop(1000)
def sixth_layerwise_trust(watch: Watch, steps: int) -> None:
    """LAMB with large batches: each layer's update as long as a share of its weights."""

    class Lamb(torch.optim.Optimizer):
        def __init__(self, weights: list[nn.Parameter], lr: float) -> None:
            super().__init__(weights, {"lr": lr, "betas": (0.9, 0.999), "weight_decay": 0.01})

        @torch.no_grad()
        def step(self, closure: None = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for weight in group["params"]:
                    state = self.state[weight]
                    if not state:
                        state["step"] = torch.tensor(0.0)
                        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(weight), torch.zeros_like(weight)
                    state["step"] += 1
                    state["exp_avg"].lerp_(weight.grad, 0.1)
                    state["exp_avg_sq"].lerp_(weight.grad**2, 0.001)
                    time = float(state["step"])
                    way = state["exp_avg"] / (1 - 0.9**time)
                    way = way / ((state["exp_avg_sq"] / (1 - 0.999**time)).sqrt() + 1e-6)
                    way = way + group["weight_decay"] * weight
                    size = weight.norm()
                    trust = float(size / way.norm()) if size > 0 and way.norm() > 0 else 1.0
                    weight.add_(way, alpha=-group["lr"] * min(trust, 10.0))

    model = mlp(12, 64, 64, 3, act=nn.GELU)
    lamb = Lamb(list(model.parameters()), 5e-3)
    rows = Table()

    def loss_of(_: int) -> Tensor:
        x, y = rows.batch(256)
        return functional.mse_loss(model(x), y)

    fit(watch, model, lamb, loss_of, steps, warm_up(lamb, 100))


@loop(900)
def sixth_masked_rows(watch: Watch, steps: int) -> None:
    """A table transformer: columns as tokens, some of them missing, a head for classes."""

    class Columns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.randn(12, 24) / 5), nn.Parameter(torch.randn(13, 24) / 5)
            self.missing = nn.Parameter(torch.zeros(24))
            self.body = nn.TransformerEncoder(
                nn.TransformerEncoderLayer(24, 4, 48, 0.1, "gelu", batch_first=True), 2, enable_nested_tensor=False
            )
            self.head = nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            tokens = x[:, :, None] * self.scale
            tokens = torch.where(torch.rand(*x.shape, 1) < 0.1, self.missing, tokens)
            tokens = torch.cat([torch.zeros(len(x), 1, 24), tokens], 1) + self.shift
            found: Tensor = self.head(self.body(tokens)[:, 0])
            return found

    model = Columns()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    batches = in_epochs(Table().classes(1200), 32)

    def loss_of(_: int) -> Tensor:
        x, y = next(batches)
        return functional.cross_entropy(model(x), y)

    fit(watch, model, adam, loss_of, steps, schedules.CosineAnnealingWarmRestarts(adam, 300))


@loop(900)
def sixth_boxes(watch: Watch, steps: int) -> None:
    """Queries that each look for one object, matched to the objects by the least cost, most of them to nothing."""
    body, queries = mlp(144, 64, 32), nn.Parameter(torch.randn(5, 32))
    model = nn.ModuleDict({"body": body, "mixed": mlp(64, 32), "classes": nn.Linear(32, 5), "place": nn.Linear(32, 1)})
    model.register_parameter("queries", queries)
    adam = torch.optim.AdamW([
        {"params": body.parameters(), "lr": 1e-4},
        {"params": [weight for name, weight in model.named_parameters() if not name.startswith("body")], "lr": 1e-3},
    ])  # fmt: skip

    def loss_of(_: int) -> Tensor:
        x, label = bars(12)
        hidden = torch.cat([model["body"](x.flatten(1))[:, None].expand(12, 5, 32), queries.expand(12, 5, 32)], 2)
        hidden = model["mixed"](hidden).relu()
        logits, place = model["classes"](hidden), model["place"](hidden)[:, :, 0]
        with torch.no_grad():
            chance = logits.softmax(-1).gather(2, label[:, None, None].expand(12, 5, 1))[:, :, 0]
            best = ((place - label[:, None]).abs() - chance).argmin(1)
        wanted = torch.full((12, 5), 4)
        wanted[torch.arange(12), best] = label
        found = functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), torch.tensor([1.0] * 4 + [0.1]))
        return found + functional.l1_loss(place[torch.arange(12), best], label.float())

    fit(watch, model, adam, loss_of, steps, None, 0.1)


@loop(900)
def sixth_weights_from_a_net(watch: Watch, steps: int) -> None:
    """A network that makes the weights of another one, for tasks drawn at random."""
    made = mlp(4, 48, 2 * 16 + 16 + 16 + 1, act=nn.Tanh)
    adam = torch.optim.Adam(made.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        task = torch.randn(8, 4)
        one, bias, two, last = made(task).split([32, 16, 16, 1], 1)
        x = torch.rand(8, 32, 2) * 2 - 1
        hidden = (x @ one.view(8, 2, 16) + bias[:, None]).sin()
        found = (hidden * two[:, None]).sum(2) + last
        wanted = task[:, :1] * (x[:, :, 0] * 2).sin() + task[:, 1:2] * x[:, :, 1] + task[:, 2:3]
        return functional.mse_loss(found, wanted)

    fit(watch, made, adam, loss_of, steps, warm_up(adam, 30))


@loop(900)
def sixth_read_and_write(watch: Watch, steps: int) -> None:
    """A copying task: a GRU encoder, a decoder with attention, teacher forcing that is given up by and by."""
    model = nn.ModuleDict({
        "words": nn.Embedding(14, 24), "read": nn.GRU(24, 24, batch_first=True), "write": nn.GRUCell(48, 24),
        "heat": nn.Linear(24, 24, bias=False), "out": nn.Linear(48, 14),
    })  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(step: int) -> Tensor:
        ids = torch.randint(1, 14, (12, 6))
        states, last = model["read"](model["words"](ids))
        state, word, loss = last[0], torch.zeros(12, dtype=torch.long), torch.zeros(())
        for at in range(6):
            heat = (model["heat"](states) @ state[:, :, None]).softmax(1)
            seen = (heat * states).sum(1)
            state = model["write"](torch.cat([model["words"](word), seen], 1), state)
            logits = model["out"](torch.cat([state, seen], 1))
            loss = loss + functional.cross_entropy(logits, ids[:, at]) / 6
            is_forced = torch.rand(()) < max(0.2, 1 - step / 600)
            word = ids[:, at] if is_forced else logits.argmax(1)
        return loss

    fit(watch, model, adam, loss_of, steps, None, 1.0)


@loop(700)
def sixth_kernel(watch: Watch, steps: int) -> None:
    """A Gaussian process on learned features: the likelihood of all rows at once, by Cholesky."""
    body = mlp(4, 24, 3, act=nn.Tanh)
    model = nn.ModuleDict({"body": body})
    model.register_parameter("logs", nn.Parameter(torch.tensor([0.0, 0.0, -1.0])))
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    x = torch.randn(80, 4)
    y = (x[:, 0] * 2).sin() + x[:, 1] * x[:, 2] * 0.5 + 0.1 * torch.randn(80)

    def loss_of(_: int) -> Tensor:
        place = body(x)
        width, size, noise = model.logs.exp()
        near = size * (-torch.cdist(place, place).square() / (2 * width**2)).exp() + (noise + 1e-3) * torch.eye(80)
        root = torch.linalg.cholesky(near)
        half = torch.linalg.solve_triangular(root, y[:, None], upper=False)
        return (0.5 * half.square().sum() + root.diagonal().log().sum()) / 80 + 0.5 * math.log(2 * math.pi)

    fit(watch, model, adam, loss_of, steps)


@loop(800)
def sixth_sharpened_student(watch: Watch, steps: int) -> None:
    """A student of half the width learns from a teacher's words and hidden states; both in evaluation and training."""
    teacher, student = Decoder(width=32), Decoder(width=16)
    before = torch.optim.Adam(teacher.parameters(), lr=2e-3)
    for _ in range(120):
        ids = text(8)
        before.zero_grad()
        next_token_loss(teacher(ids), ids).backward()
        before.step()
    teacher.eval().requires_grad_(False)
    adam = torch.optim.AdamW(student.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        ids = text(8)
        found, wanted = student(ids), teacher(ids)
        apart = functional.kl_div(
            (found / 2).log_softmax(-1), (wanted / 2).softmax(-1), reduction="none"
        ).sum(-1).mean()  # fmt: skip
        return 0.5 * next_token_loss(found, ids) + 2 * apart

    fit(watch, student, adam, loss_of, steps, schedules.CosineAnnealingLR(adam, steps), 1.0)
