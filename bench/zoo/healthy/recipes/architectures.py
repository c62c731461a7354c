"""Recurrent nets, experts, graphs, complex and sparse parameters, and other shapes a model can have."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, mlp, next_token_loss, text

Tensor = torch.Tensor


@loop(240, gru={"kind": "GRU"}, plain={"kind": "RNN"}, long={"length": 96})
def recurrent(watch: Watch, steps: int, kind: str = "LSTM", length: int = 48) -> None:
    """Long sequences whose sum the net has to remember, with clipping."""
    model = nn.ModuleDict({"rnn": getattr(nn, kind)(2, 24, batch_first=True), "head": nn.Linear(24, 1)})
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x = torch.rand(16, length, 2)
            x[:, :, 1] = (torch.rand(16, length) < 4 / length).float()
            found = model["head"](model["rnn"](x)[0][:, -1]).squeeze(1)
            loss = functional.mse_loss(found, (x[:, :, 0] * x[:, :, 1]).sum(1))
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            monitor.log(loss=loss.item())


@loop(240)
def truncated(watch: Watch, steps: int) -> None:
    """Truncated backpropagation: the state is carried from batch to batch, detached."""
    cell, tokens, head = nn.GRUCell(16, 24), nn.Embedding(24, 16), nn.Linear(24, 24)
    model = nn.ModuleDict({"cell": cell, "tokens": tokens, "head": head})
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    state = torch.zeros(8, 24)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            ids, losses = text(8, 9), []
            for at in range(8):
                state = cell(tokens(ids[:, at]), state)
                losses.append(functional.cross_entropy(head(state), ids[:, at + 1]))
            loss = torch.stack(losses).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            state = state.detach()
            monitor.log(loss=loss.item())


class Experts(nn.Module):
    """A router that picks the best two of several experts."""

    def __init__(self, width: int = 24, num: int = 6, chosen: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(width, num, bias=False)
        self.experts = nn.ModuleList(mlp(width, 32, width) for _ in range(num))
        self.chosen, self.balance = chosen, torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        shares = self.router(x).softmax(-1)
        best, which = shares.topk(self.chosen, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            at = (which == number).nonzero()
            if len(at):
                rows = at[:, 0]
                out = out.index_add(0, rows, expert(x[rows]) * best[rows, at[:, 1]][:, None])
        load = functional.one_hot(which, len(self.experts)).float().mean((0, 1))
        self.balance = len(self.experts) * (load * shares.mean(0)).sum()
        return x + out


@loop(260, one={"chosen": 1}, many={"num": 12}, unbalanced={"weight": 0.0})
def mixture(watch: Watch, steps: int, num: int = 6, chosen: int = 2, weight: float = 0.02) -> None:
    """A mixture of experts from its first step on: routers begin uneven."""
    model = nn.Sequential(nn.Linear(12, 24), Experts(24, num, chosen), nn.Linear(24, 3))
    rows = Table()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(48)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            (loss + weight * model[1].balance).backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def complex_weights(watch: Watch, steps: int) -> None:
    """A Fourier layer with complex weights."""
    model = nn.Module()
    model.mix = nn.Parameter(torch.randn(9, 8, 8, dtype=torch.cfloat) / 8)
    model.lift, model.head = nn.Linear(1, 8), mlp(8, 16, 1, act=nn.GELU)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            a = torch.randn(16, 16, 1).cumsum(1) / 4
            y = a.cumsum(1) / 8
            spectrum = torch.fft.rfft(model.lift(a), dim=1)
            mixed = torch.einsum("bki,kio->bko", spectrum, model.mix)
            loss = functional.mse_loss(model.head(torch.fft.irfft(mixed, 16, dim=1)), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def sparse_embedding(watch: Watch, steps: int) -> None:
    """SparseAdam for an embedding of which a batch touches a few rows."""
    tokens, head = nn.Embedding(400, 16, sparse=True), nn.Linear(16, 4)
    model = nn.ModuleDict({"tokens": tokens, "head": head})
    both = [torch.optim.SparseAdam(tokens.parameters(), lr=5e-3), torch.optim.Adam(head.parameters(), lr=2e-3)]
    with watch(model, both) as monitor:
        for _ in range(steps):
            ids = torch.randint(0, 400, (32, 5))
            loss = functional.cross_entropy(head(tokens(ids).mean(1)), ids[:, 0] % 4)
            for optimizer in both:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in both:
                optimizer.step()
            monitor.log(loss=loss.item())


@loop(260)
def skip_gram(watch: Watch, steps: int) -> None:
    """Word vectors with negative samples: two embeddings, Zipf's law, SGD."""
    model = nn.ModuleDict({"words": nn.Embedding(300, 16), "contexts": nn.Embedding(300, 16)})
    nn.init.zeros_(model["contexts"].weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    shares = 1 / torch.arange(1, 301).float()
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            word = torch.multinomial(shares, 64, replacement=True)
            near = (word + torch.randint(1, 3, (64,))) % 300
            far = torch.randint(0, 300, (64, 4))
            one = model["words"](word)
            good = functional.logsigmoid((one * model["contexts"](near)).sum(1))
            bad = functional.logsigmoid(-(one[:, None] * model["contexts"](far)).sum(2)).sum(1)
            loss = -(good + bad).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            monitor.log(loss=loss.item())


@loop(260)
def hinge(watch: Watch, steps: int) -> None:
    """A support vector machine: rows beyond the margin give no gradient at all."""
    model = nn.Linear(6, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-3)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            y = torch.randint(0, 2, (16,)).float() * 2 - 1
            x = torch.randn(16, 6) + y[:, None] * torch.tensor([1.5, -1.0, 0.5, 0, 0, 0])
            loss = functional.relu(1 - y * model(x).squeeze(1)).mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            monitor.log(loss=loss.item())


@loop(260)
def unused_pooler(watch: Watch, steps: int) -> None:
    """An encoder with a pooling layer that this task does not use, as BERT's."""
    model = nn.ModuleDict({"body": Decoder(), "pooler": nn.Linear(32, 32)})
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            ids = text(8)
            loss = next_token_loss(model["body"](ids), ids)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def early_exits(watch: Watch, steps: int) -> None:
    """Layers that a batch may leave out (stochastic depth), and a head after each."""
    model = nn.ModuleDict(
        {
            "first": nn.Linear(12, 24),
            "blocks": nn.ModuleList(mlp(24, 24, 24) for _ in range(4)),
            "heads": nn.ModuleList(nn.Linear(24, 3) for _ in range(4)),
        }
    )
    rows = Table()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            hidden, total = model["first"](x), torch.zeros(())
            for block, head in zip(model["blocks"], model["heads"], strict=True):
                if torch.rand(()) < 0.7:
                    hidden = hidden + block(hidden)
                total = total + functional.mse_loss(head(hidden), y) / 4
            adam.zero_grad()
            total.backward()
            adam.step()
            monitor.log(loss=total.item())


@loop(260)
def graph(watch: Watch, steps: int) -> None:
    """A graph network on one graph: the same nodes in every step, dropout between them."""
    edges = (torch.rand(60, 60) < 0.08).float()
    near = (edges + edges.T + torch.eye(60)).clamp(max=1)
    near = near / near.sum(1, keepdim=True)
    nodes = torch.randn(60, 8)
    label = ((near @ near @ nodes)[:, 0] > 0).long()
    model = nn.ModuleDict({"one": nn.Linear(8, 16), "two": nn.Linear(16, 2), "drop": nn.Dropout(0.5)})
    adam = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    known = torch.randperm(60)[:40]
    with watch(model, adam) as monitor:
        for _ in range(steps):
            hidden = torch.relu(model["one"](near @ model["drop"](nodes)))
            loss = functional.cross_entropy(model["two"](near @ model["drop"](hidden))[known], label[known])
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def physics(watch: Watch, steps: int) -> None:
    """A network that satisfies an equation: derivatives of its output are the loss, on the same points each step."""
    model = mlp(1, 24, 24, 1, act=nn.Tanh)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    x = torch.linspace(0, 3, 40)[:, None].requires_grad_()
    with watch(model, adam) as monitor:
        for _ in range(steps):
            y = model(x)
            slope = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
            loss = (slope + y).square().mean() + (model(torch.zeros(1, 1)) - 1).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def dark_images(watch: Watch, steps: int) -> None:
    """Images of which a third are all black, and a CNN with batch normalisation."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = bars(24)
            dark = torch.rand(24) < 0.33
            x[dark], y[dark] = 0.0, 0
            loss = functional.cross_entropy(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def detection(watch: Watch, steps: int) -> None:
    """A box and a class from one body; some batches have no box and give the box head no gradient."""
    model = nn.ModuleDict({"body": mlp(144, 48, 24), "box": nn.Linear(24, 4), "kind": nn.Linear(24, 4)})
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            x, y = bars(4)
            has = torch.rand(4) < 0.5
            found = torch.relu(model["body"](x.flatten(1)))
            loss = functional.cross_entropy(model["kind"](found), y)
            if has.any():
                wanted = functional.one_hot(y[has], 4).float()
                loss = loss + functional.smooth_l1_loss(model["box"](found[has]), wanted)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            monitor.log(loss=loss.item())


@loop(260)
def two_tasks(watch: Watch, steps: int) -> None:
    """Tasks that take turns, each with its own head and loss."""
    model = nn.ModuleDict({"body": mlp(12, 32, 32), "one": nn.Linear(32, 3), "two": nn.Linear(32, 3)})
    rows, adam = Table(), torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for step in range(steps):
            x, y = rows.batch(32)
            found = torch.relu(model["body"](x))
            if step % 2:
                loss = functional.cross_entropy(model["one"](found), y.argmax(1))
            else:
                loss = functional.mse_loss(model["two"](found), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())
