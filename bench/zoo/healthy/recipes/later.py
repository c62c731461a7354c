"""Loops written after the rules had been mended on the others."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.samples import Decoder, Table, bars, mlp, next_token_loss, text

Tensor = torch.Tensor


@loop(300)
def later_style_transfer(watch: Watch, steps: int) -> None:
    """An image is the parameter; a fixed network through which the loss is computed gets gradients nobody uses."""
    features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    model = nn.Module()
    model.image, model.features = nn.Parameter(torch.rand(1, 1, 12, 12)), features
    wanted = features(bars(1)[0]).detach()
    adam = torch.optim.Adam([model.image], lr=0.02)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            loss = functional.mse_loss(features(model.image), wanted)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260, hard={"share": 0.3})
def later_hard_mining(watch: Watch, steps: int, share: float = 0.5) -> None:
    """Only the hardest rows of a batch count."""
    model, rows = mlp(12, 32, 3), Table()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            x, y = rows.classes(48)
            losses = functional.cross_entropy(model(x), y, reduction="none")
            loss = losses.topk(round(share * 48)).values.mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            monitor.log(loss=loss.item())


@loop(240)
def later_sequence_labels(watch: Watch, steps: int) -> None:
    """CTC over sequences of different lengths, padded."""
    model = nn.ModuleDict({"rnn": nn.GRU(6, 24, batch_first=True), "head": nn.Linear(24, 5)})
    adam = torch.optim.Adam(model.parameters(), lr=3e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            labels = torch.randint(1, 5, (12, 4))
            x = functional.one_hot(labels, 6).float().repeat_interleave(4, 1) + 0.3 * torch.randn(12, 16, 6)
            lengths = torch.randint(12, 17, (12,))
            found = model["head"](model["rnn"](x)[0]).log_softmax(-1).transpose(0, 1)
            loss = functional.ctc_loss(found, labels, lengths, torch.full((12,), 4), zero_infinity=True)
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def later_focal(watch: Watch, steps: int) -> None:
    """A focal loss on rare positives, with a bias that starts at their share."""
    model = mlp(8, 32, 1)
    nn.init.constant_(model[-1].bias, -3.0)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            y = (torch.rand(64, 1) < 0.05).float()
            x = torch.randn(64, 8) + 1.5 * y
            scores = model(x)
            plain = functional.binary_cross_entropy_with_logits(scores, y, reduction="none")
            loss = ((1 - (-plain).exp()).square() * plain).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(260)
def later_mixed_rows(watch: Watch, steps: int) -> None:
    """Mixup: each batch is blended with itself, with a share that is drawn anew."""
    model = nn.Sequential(nn.Conv2d(1, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 4))
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, steps)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            x, y = bars(24)
            share, order = float(torch.distributions.Beta(0.4, 0.4).sample()), torch.randperm(24)
            found = model(share * x + (1 - share) * x[order])
            loss = share * functional.cross_entropy(found, y) + (1 - share) * functional.cross_entropy(found, y[order])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            schedule.step()
            monitor.log(loss=loss.item())


@loop(240)
def later_layer_rates(watch: Watch, steps: int) -> None:
    """Fine-tuning with a rate of its own for each layer, and a warm-up for all."""
    model = Decoder(layers=3)
    groups = [{"params": list(part.parameters()), "lr": 1e-3 * 0.5**at} for at, part in enumerate(model.children())]
    adam = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: min(1.0, (step + 1) / 30))
    with watch(model, adam) as monitor:
        for _ in range(steps):
            ids = text(6)
            loss = next_token_loss(model(ids), ids)
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            monitor.log(loss=loss.item())


@loop(260)
def later_evolving_targets(watch: Watch, steps: int) -> None:
    """Online learning: what is right moves slowly during training."""
    model = mlp(6, 24, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    with watch(model, sgd) as monitor:
        for step in range(steps):
            angle = torch.tensor(step / 60.0)
            x = torch.randn(32, 6)
            loss = (model(x).squeeze(1) - torch.cos(angle) * x[:, 0] - torch.sin(angle) * x[:, 1]).square().mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            monitor.log(loss=loss.item())


@loop(240)
def later_pruned(watch: Watch, steps: int) -> None:
    """Magnitude pruning in three rounds during training."""
    from torch.nn.utils import prune

    model, rows = mlp(12, 48, 3), Table()
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    for at in (0, 2):
        prune.l1_unstructured(model[at], "weight", amount=0.1)
    with watch(model, adam) as monitor:
        for step in range(steps):
            if step in (80, 130, 180):
                for at in (0, 2):
                    prune.l1_unstructured(model[at], "weight", amount=0.2)
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(240)
def later_private(watch: Watch, steps: int) -> None:
    """DP-SGD: gradients are clipped row by row and noise is added before the update."""
    model, rows = mlp(12, 24, 3), Table()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, sgd) as monitor:
        for _ in range(steps):
            x, y = rows.batch(16)
            loss = functional.mse_loss(model(x), y)
            sgd.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for weight in model.parameters():
                weight.grad.add_(0.02 * torch.randn_like(weight))
            sgd.step()
            monitor.log(loss=loss.item())


@loop(240)
def later_ranking(watch: Watch, steps: int) -> None:
    """A pairwise ranking loss, on which the last bias has no influence."""
    model = mlp(8, 24, 1)
    adam = torch.optim.Adam(model.parameters(), lr=2e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x = torch.randn(32, 2, 8)
            scores = model(x).squeeze(2)
            better = torch.where(x[:, 0, 0] > x[:, 1, 0], 1.0, -1.0)
            loss = functional.softplus(-better * (scores[:, 0] - scores[:, 1])).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(240)
def later_energy(watch: Watch, steps: int) -> None:
    """An energy model: samples come from steps on the input, and the objective hovers around zero."""
    model = mlp(2, 32, 1, act=nn.SiLU)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, adam) as monitor:
        for _ in range(steps):
            real = torch.randn(32, 2) * 0.3 + 1
            found = torch.randn(32, 2)
            for _ in range(5):
                found.requires_grad_()
                slope = torch.autograd.grad(model(found).sum(), found)[0]
                found = (found - 0.1 * slope + 0.05 * torch.randn_like(found)).detach()
            loss = model(real).mean() - model(found).mean() + 0.1 * model(real).square().mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
            monitor.log(loss=loss.item())


@loop(240)
def later_resumed(watch: Watch, steps: int) -> None:
    """Training goes on from a checkpoint of model, optimizer and schedule."""
    model, rows = mlp(12, 32, 3), Table()
    adam = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 2 * steps)
    for _ in range(120):
        x, y = rows.batch(32)
        adam.zero_grad()
        functional.mse_loss(model(x), y).backward()
        adam.step()
        schedule.step()
    with watch(model, adam) as monitor:
        for _ in range(steps):
            x, y = rows.batch(32)
            loss = functional.mse_loss(model(x), y)
            adam.zero_grad()
            loss.backward()
            adam.step()
            schedule.step()
            monitor.log(loss=loss.item())
