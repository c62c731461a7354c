"""Loops of a fifth round, in the manner of tutorials: finite data in epochs, whole graphs, evaluation in between.

Written before anybody looked at what rules say of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Table, bars, fit, text

Tensor = torch.Tensor
schedules = torch.optim.lr_scheduler


def in_epochs(rows: tuple[Tensor, ...], size: int, is_last_dropped: bool = False) -> Iterator[tuple[Tensor, ...]]:
    """Batches of finite data, shuffled anew in each epoch; the last of an epoch may be smaller."""
    while True:
        for at in torch.randperm(len(rows[0])).split(size):
            if len(at) == size or not is_last_dropped:
                yield tuple(part[at] for part in rows)


@loop(1500)
def fifth_polynomial_fit(watch: Watch, steps: int) -> None:
    """One linear layer on four powers of a number."""
    model = nn.Linear(4, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.02)
    wanted = torch.randn(4, 1) * 2

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 1)
        powers = torch.cat([x**power for power in range(1, 5)], 1)
        return functional.smooth_l1_loss(model(powers), powers @ wanted + 0.7)

    fit(watch, model, sgd, loss_of, steps)


class GraphLayer(nn.Module):
    """A graph convolution, or attention over neighbours."""

    def __init__(self, before: int, after: int, has_attention: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(before, after, bias=False)
        self.scores = nn.Linear(after, 2, bias=False) if has_attention else None

    def forward(self, x: Tensor, joined: Tensor) -> Tensor:
        x = self.linear(x)
        if self.scores is not None:
            own, other = self.scores(x).unbind(1)
            heat = functional.leaky_relu(own[:, None] + other[None], 0.2).masked_fill(joined == 0, -1e9)
            joined = functional.dropout(heat.softmax(1), 0.4, self.training)
        return joined @ x


class GraphNet(nn.Module):
    """Two layers over a graph."""

    def __init__(self, has_attention: bool) -> None:
        super().__init__()
        self.first, self.second = GraphLayer(24, 16, has_attention), GraphLayer(16, 4, has_attention)

    def forward(self, x: Tensor, joined: Tensor) -> Tensor:
        hidden = functional.elu(self.first(functional.dropout(x, 0.5, self.training), joined))
        found: Tensor = self.second(functional.dropout(hidden, 0.5, self.training), joined).log_softmax(1)
        return found


@loop(1000, attention={"has_attention": True})
def fifth_whole_graph(watch: Watch, steps: int, has_attention: bool = False) -> None:
    """GCN and GAT: the same whole graph in each step, a few labelled nodes, validation every ten steps."""
    label = torch.randint(0, 4, (160,))
    x = 0.8 * torch.randn(160, 24) + functional.one_hot(label, 24).float()
    joined = ((label[:, None] == label[None]) & (torch.rand(160, 160) < 0.08) | torch.eye(160).bool()).float()
    joined = joined / joined.sum(1, keepdim=True)
    model = GraphNet(has_attention)
    adam = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    with watch(model, adam) as monitor:
        for step in range(steps):
            model.train()
            loss = functional.nll_loss(model(x, joined)[:40], label[:40])
            adam.zero_grad()
            loss.backward()
            adam.step()
            numbers = {"loss": loss.item()}
            if step % 10 == 9:
                model.eval()
                with torch.no_grad():
                    numbers["val_loss"] = functional.nll_loss(model(x, joined)[40:100], label[40:100]).item()
            monitor.log(**numbers)


@loop(1200, large={"rate": 20.0})
def fifth_carried_words(watch: Watch, steps: int, rate: float = 5.0) -> None:
    """An LSTM language model: columns of one long text, carried state, SGD, the rate divided by 4 at a bad epoch."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.into = nn.Dropout(0.2), nn.Embedding(24, 32)
            self.body, self.head = nn.LSTM(32, 32, 2, dropout=0.2), nn.Linear(32, 24)
            nn.init.uniform_(self.into.weight, -0.1, 0.1)

        def forward(self, ids: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            found, state = self.body(self.drop(self.into(ids)), state)
            return self.head(self.drop(found)), state

    model, long, best = Words(), text(8, 16 * 60 + 1).t(), 1e9
    held = text(8, 65).t()
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    done = 0
    with watch(model, sgd) as monitor:
        while done < steps:
            state = (torch.zeros(2, 8, 32), torch.zeros(2, 8, 32))
            model.train()
            for at in range(0, 960, 16):
                state = (state[0].detach(), state[1].detach())
                sgd.zero_grad()
                logits, state = model(long[at : at + 16], state)
                loss = functional.cross_entropy(logits.flatten(0, 1), long[at + 1 : at + 17].flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.25)
                sgd.step()
                monitor.log(loss=loss.item(), ppl=loss.exp().item())
                done += 1
            model.eval()
            with torch.no_grad():
                logits, _ = model(held[:-1], (torch.zeros(2, 8, 32), torch.zeros(2, 8, 32)))
                found = functional.cross_entropy(logits.flatten(0, 1), held[1:].flatten()).item()
            if found < best:
                best = found
            else:
                sgd.param_groups[0]["lr"] /= 4


@loop(1000)
def fifth_pairs(watch: Watch, steps: int) -> None:
    """Are two images of the same class? One network for both, Adadelta, a rate that falls with each epoch."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU(), nn.Flatten())
            self.head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            found: Tensor = self.head(torch.cat([self.body(one), self.body(two)], 1)).squeeze(1).sigmoid()
            return found

    model = Pairs()
    adadelta = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = schedules.StepLR(adadelta, 100, 0.7)
    (one, label), (two, other) = bars(800), bars(800)
    other[::2], two[::2] = label[::2], one[::2].flip(2) + 0.2 * torch.randn_like(one[::2])
    batches = in_epochs((one, two, (label == other).float()), 16)

    def loss_of(_: int) -> Tensor:
        first, second, same = next(batches)
        return functional.binary_cross_entropy(model(first, second), same)

    fit(watch, model, adadelta, loss_of, steps, schedule)


@loop(1000)
def fifth_layer_by_layer(watch: Watch, steps: int) -> None:
    """Forward-forward: each layer has its own goodness, its own loss and its own optimizer; nothing flows back."""
    layers = nn.ModuleList([nn.Linear(16, 48), nn.Linear(48, 48)])
    adams = [torch.optim.Adam(layer.parameters(), lr=3e-3) for layer in layers]
    x, label = Table(12, 4).classes(640)
    batches = in_epochs((x, label), 64)
    with watch(layers, adams) as monitor:
        for _ in range(steps):
            rows, right = next(batches)
            wrong = (right + torch.randint(1, 4, right.shape)) % 4
            good = torch.cat([rows, functional.one_hot(right, 4) * 2.0], 1)
            bad = torch.cat([rows, functional.one_hot(wrong, 4) * 2.0], 1)
            total = 0.0
            for layer, adam in zip(layers, adams, strict=True):
                good, bad = good / (good.norm(2, 1, True) + 1e-4), bad / (bad.norm(2, 1, True) + 1e-4)
                high, low = layer(good).relu(), layer(bad).relu()
                goodness = torch.cat([2.0 - high.pow(2).mean(1), low.pow(2).mean(1) - 2.0])
                loss = functional.softplus(goodness).mean()
                adam.zero_grad()
                loss.backward()
                adam.step()
                good, bad = high.detach(), low.detach()
                total += loss.item()
            monitor.log(loss=total)


@loop(60)
def fifth_sine_search(watch: Watch, steps: int) -> None:
    """Sine waves in double precision: two LSTM cells and L-BFGS, which evaluates the same rows many times a step."""

    class Waves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.out = nn.LSTMCell(1, 16), nn.LSTMCell(16, 16), nn.Linear(16, 1)

        def forward(self, x: Tensor) -> Tensor:
            first = second = None
            found = []
            for value in x.split(1, 1):
                first = self.one(value, first)
                second = self.two(first[0], second)
                found.append(self.out(second[0]))
            return torch.cat(found, 1)

    model = Waves().double()
    lbfgs = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=5)
    start = torch.randint(-80, 80, (12, 1))
    waves = torch.sin((torch.arange(21) + start) / 4.0).double()
    with watch(model, lbfgs) as monitor:
        for _ in range(steps):

            def closure() -> Tensor:
                lbfgs.zero_grad()
                loss = functional.mse_loss(model(waves[:, :-1]), waves[:, 1:])
                loss.backward()
                return loss

            loss = lbfgs.step(closure)
            monitor.log(loss=float(loss))


@loop(1000)
def fifth_larger_images(watch: Watch, steps: int) -> None:
    """Super-resolution: convolutions and a pixel shuffle, orthogonal weights, epochs of few images."""
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, 1, 2), nn.ReLU(), nn.Conv2d(12, 12, 3, 1, 1), nn.ReLU(), nn.Conv2d(12, 4, 3, 1, 1),
        nn.PixelShuffle(2),
    )  # fmt: skip
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            nn.init.orthogonal_(layer.weight)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    large = functional.avg_pool2d(bars(200, 26)[0], 3, 1)
    batches = in_epochs((functional.avg_pool2d(large, 2), large), 12)

    def loss_of(_: int) -> Tensor:
        small, wanted = next(batches)
        return functional.mse_loss(model(small), wanted)

    fit(watch, model, adam, loss_of, steps)


@loop(1500)
def fifth_image_epochs(watch: Watch, steps: int) -> None:
    """A small CNN with dropout on 1,000 images, Adadelta, a step of the rate and an evaluation at each epoch's end."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4), nn.LogSoftmax(1),
    )  # fmt: skip
    adadelta = torch.optim.Adadelta(model.parameters(), lr=1.0)
    schedule = schedules.StepLR(adadelta, 1, 0.7)
    images, labels = bars(1000)
    test, answers = bars(128)
    done = 0
    with watch(model, adadelta) as monitor:
        while done < steps:
            model.train()
            for at in torch.randperm(1000).split(48):
                adadelta.zero_grad()
                loss = functional.nll_loss(model(images[at] + 0.4 * torch.randn(len(at), 1, 12, 12)), labels[at])
                loss.backward()
                adadelta.step()
                monitor.log(loss=loss.item())
                done += 1
            model.eval()
            with torch.no_grad():
                monitor.log(test_loss=functional.nll_loss(model(test), answers).item())
            schedule.step()


@loop(1200)
def fifth_rows_as_sequence(watch: Watch, steps: int) -> None:
    """An LSTM reads an image row by row; batch normalisation and dropout before the answer."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm = nn.LSTM(12, 24, batch_first=True), nn.BatchNorm1d(24)
            self.drop, self.head = nn.Dropout(0.25), nn.Linear(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.drop(self.norm(self.body(x.squeeze(1))[0][:, -1])))
            return found

    model = Reader()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    batches = in_epochs(bars(700), 32)

    def loss_of(_: int) -> Tensor:
        x, y = next(batches)
        return functional.cross_entropy(model(x), y)

    fit(watch, model, adam, loss_of, steps)


@loop(700)
def fifth_painted(watch: Watch, steps: int) -> None:
    """A network that paints in one style: instance norms, upsampling, the loss of features that nobody trains."""
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 1, 1), nn.InstanceNorm2d(8, affine=True), nn.ReLU(), nn.Conv2d(8, 12, 3, 2, 1),
        nn.InstanceNorm2d(12, affine=True), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(12, 1, 3, 1, 1),
    )  # fmt: skip
    eye = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU()).requires_grad_(False)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    style = eye(bars(1)[0]).flatten(2)
    style = style @ style.transpose(1, 2) / style.shape[2]

    def loss_of(_: int) -> Tensor:
        x = bars(4)[0]
        made = eye(model(x))
        gram = made.flatten(2) @ made.flatten(2).transpose(1, 2) / made[0, 0].numel()
        return functional.mse_loss(made, eye(x)) + 10 * functional.mse_loss(gram, style.expand_as(gram))

    fit(watch, model, adam, loss_of, steps)


@loop(1000)
def fifth_residual_epochs(watch: Watch, steps: int) -> None:
    """The ImageNet recipe, small: SGD with momentum, rates divided by ten, flips, validation, a short last batch."""

    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.one, self.two = (
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
                nn.Conv2d(width, width, 3, 1, 1, bias=False),
            )
            self.norm, self.after = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

        def forward(self, x: Tensor) -> Tensor:
            return functional.relu(x + self.after(self.two(functional.relu(self.norm(self.one(x))))))

    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(), Residual(12), Residual(12),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = schedules.MultiStepLR(sgd, [12, 20], 0.1)
    images, labels = bars(650)
    test, answers = bars(100)
    done = 0
    with watch(model, sgd) as monitor:
        while done < steps:
            model.train()
            for at in torch.randperm(650).split(16):
                x = images[at] + 0.5 * torch.randn(len(at), 1, 12, 12)
                loss = functional.cross_entropy(model(x), labels[at])
                sgd.zero_grad()
                loss.backward()
                sgd.step()
                monitor.log(loss=loss.item())
                done += 1
            model.eval()
            with torch.no_grad():
                monitor.log(val_loss=functional.cross_entropy(model(test), answers).item())
            schedule.step()


@loop(1200)
def fifth_variational_epochs(watch: Watch, steps: int) -> None:
    """The VAE tutorial: pixels as chances, losses summed over the batch, epochs of 1,500 images."""

    class Variational(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.mean, self.log = nn.Linear(144, 48), nn.Linear(48, 6), nn.Linear(48, 6)
            self.back, self.out = nn.Linear(6, 48), nn.Linear(48, 144)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden = self.into(x).relu()
            mean, log = self.mean(hidden), self.log(hidden)
            code = mean + torch.randn_like(mean) * (log / 2).exp()
            return self.out(self.back(code).relu()).sigmoid(), mean, log

    model = Variational()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    batches = in_epochs(((bars(1500)[0].flatten(1) / 2).clamp(0, 1),), 64)

    def loss_of(_: int) -> Tensor:
        (x,) = next(batches)
        made, mean, log = model(x)
        return functional.binary_cross_entropy(made, x, reduction="sum") - 0.5 * (1 + log - mean**2 - log.exp()).sum()

    fit(watch, model, adam, loss_of, steps)
