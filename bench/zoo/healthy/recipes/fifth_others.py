"""Loops of a fifth round: generators, representations, forecasts, physics, each for a thousand steps or so.

Written before anybody looked at what rules say of them.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.nn import functional

from zoo.healthy.loops import Watch, loop
from zoo.healthy.recipes.fifth_control import follow
from zoo.healthy.recipes.samples import bars, fit, mlp
from zoo.healthy.recipes.third_models import UNet, warm_up

Tensor = torch.Tensor
schedules = torch.optim.lr_scheduler


@loop(800)
def fifth_flow_matching(watch: Watch, steps: int) -> None:
    """Rectified flow: straight paths from noise to images, an average of the weights, half the time near the middle."""
    model = UNet()
    averaged = copy.deepcopy(model)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        x = bars(12)[0]
        time, noise = torch.randn(12, 1).sigmoid(), torch.randn_like(x)
        mixed = time[:, :, None, None] * x + (1 - time[:, :, None, None]) * noise
        return functional.mse_loss(model(mixed, time), x - noise)

    fit(watch, model, adam, loss_of, steps, warm_up(adam, 50), 1.0, lambda _: follow(averaged, model, 0.01))


@loop(700)
def fifth_two_domains(watch: Watch, steps: int) -> None:
    """CycleGAN: two generators, two critics, least squares, there and back again; the rate falls in the second half."""

    def generator() -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, 1, 1), nn.InstanceNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3, 1, 1), nn.Tanh()
        )

    def critic() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 8, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 3, 1, 1))

    makers = nn.ModuleDict({"there": generator(), "back": generator()})
    critics = nn.ModuleDict({"one": critic(), "two": critic()})
    adams = [torch.optim.Adam(part.parameters(), lr=2e-4, betas=(0.5, 0.999)) for part in (makers, critics)]
    falls = [schedules.LambdaLR(adam, lambda at: min(1.0, 2 - 2 * at / steps)) for adam in adams]
    with watch({"makers": makers, "critics": critics}, adams) as monitor:
        for _ in range(steps):
            one, two = bars(6)[0].tanh(), bars(6)[0].transpose(2, 3).tanh()
            made, found = makers["there"](one), makers["back"](two)
            fooled = (critics["two"](made) - 1).square().mean() + (critics["one"](found) - 1).square().mean()
            cycle = functional.l1_loss(makers["back"](made), one) + functional.l1_loss(makers["there"](found), two)
            adams[0].zero_grad()
            (fooled + 10 * cycle).backward()
            adams[0].step()
            adams[1].zero_grad()
            real = (critics["one"](one) - 1).square().mean() + (critics["two"](two) - 1).square().mean()
            fake = critics["one"](found.detach()).square().mean() + critics["two"](made.detach()).square().mean()
            (0.5 * (real + fake)).backward()
            adams[1].step()
            for fall in falls:
                fall.step()
            monitor.log(loss_g=(fooled + 10 * cycle).item(), loss_d=(real + fake).item())


@loop(900)
def fifth_wanted_class(watch: Watch, steps: int) -> None:
    """A conditional GAN with a projection and two rates; gradients of the critic are penalised every 16 steps."""
    g = nn.ModuleDict({"label": nn.Embedding(4, 8), "body": mlp(16, 48, 144)})
    d = nn.ModuleDict({"body": mlp(144, 48, 24, act=nn.SiLU), "out": nn.Linear(24, 1), "label": nn.Embedding(4, 24)})
    g_adam = torch.optim.Adam(g.parameters(), lr=1e-4, betas=(0.0, 0.99))
    d_adam = torch.optim.Adam(d.parameters(), lr=4e-4, betas=(0.0, 0.99))

    def judged(x: Tensor, label: Tensor) -> Tensor:
        hidden = d["body"](x)
        return d["out"](hidden).squeeze(1) + (hidden * d["label"](label)).sum(1)

    with watch({"g": g, "d": d}, [g_adam, d_adam]) as monitor:
        for step in range(steps):
            real, label = bars(24)
            real = real.flatten(1).requires_grad_(step % 16 == 0)
            fake = g["body"](torch.cat([torch.randn(24, 8), g["label"](label)], 1))
            true = judged(real, label)
            loss_d = functional.softplus(-true).mean() + functional.softplus(judged(fake.detach(), label)).mean()
            whole = loss_d
            if step % 16 == 0:
                slope = torch.autograd.grad(true.sum(), real, create_graph=True)[0]
                whole = whole + 8 * 0.1 * slope.square().sum(1).mean()
            d_adam.zero_grad()
            whole.backward()
            d_adam.step()
            loss_g = functional.softplus(-judged(fake, label)).mean()
            g_adam.zero_grad()
            loss_g.backward()
            g_adam.step()
            monitor.log(loss_d=loss_d.item(), loss_g=loss_g.item())


@loop(900)
def fifth_moving_codes(watch: Watch, steps: int) -> None:
    """VQ-VAE whose codes are moving averages, outside the optimizer; codes that nobody uses start again."""

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.back = mlp(24, 48, 8), mlp(8, 48, 24)
            self.register_buffer("codes", torch.randn(16, 8))
            self.register_buffer("counts", torch.ones(16))
            self.register_buffer("sums", self.codes.clone())

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            code = self.into(x)
            nearest = torch.cdist(code, self.codes).argmin(1)
            with torch.no_grad():
                hits = functional.one_hot(nearest, 16).float()
                self.counts.lerp_(hits.sum(0), 0.02)
                self.sums.lerp_(hits.t() @ code, 0.02)
                self.codes.copy_(self.sums / self.counts.clamp(min=1e-3)[:, None])
                unused = self.counts < 0.2
                self.codes[unused] = code[torch.randint(0, len(code), (int(unused.sum()),))]
                self.sums[unused], self.counts[unused] = self.codes[unused], 1.0
            chosen = self.codes[nearest]
            return self.back(code + (chosen - code).detach()), functional.mse_loss(code, chosen.detach())

    model = Codes()
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    basis = torch.randn(4, 24)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(48, 4).sign() @ basis + 0.2 * torch.randn(48, 24)
        made, apart = model(x)
        return functional.mse_loss(made, x) + 0.25 * apart

    fit(watch, model, adam, loss_of, steps)


@loop(900)
def fifth_centred_teacher(watch: Watch, steps: int) -> None:
    """DINO: a teacher that follows, its answers centred and sharpened; the last layer stands still at first."""
    student = nn.Sequential(mlp(24, 48, 32, act=nn.GELU), nn.Linear(32, 16, bias=False))
    teacher, centre = copy.deepcopy(student).requires_grad_(False), torch.zeros(16)
    adam = torch.optim.AdamW(student.parameters(), lr=1e-3, weight_decay=0.04)
    basis = torch.randn(4, 24)
    done = 0

    def loss_of(step: int) -> Tensor:
        nonlocal centre
        x = torch.randn(32, 4) @ basis
        one, two = (x + 0.3 * torch.randn_like(x) for _ in range(2))
        answers = teacher(one), teacher(two)
        targets = [((answer - centre) / 0.05).softmax(1) for answer in answers]
        centre = 0.9 * centre + 0.1 * torch.cat(answers).mean(0)
        logs = [(student(view) / 0.1).log_softmax(1) for view in (two, one)]
        return -sum((target * log).sum(1).mean() for target, log in zip(targets, logs, strict=True)) / 2

    with watch(student, adam) as monitor:
        for done in range(steps):
            for group in adam.param_groups:
                group["lr"] = 1e-3 * min(1, (done + 1) / 60) * (0.5 + 0.5 * math.cos(math.pi * done / steps))
                group["weight_decay"] = 0.4 - 0.36 * (0.5 + 0.5 * math.cos(math.pi * done / steps))
            loss = loss_of(done)
            adam.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 3.0)
            if done < 60:
                student[1].weight.grad = None
            adam.step()
            follow(teacher, student, 0.004 + 0.03 * (1 - done / steps))
            monitor.log(loss=loss.item())


@loop(800)
def fifth_hidden_parts(watch: Watch, steps: int) -> None:
    """JEPA: predict what an averaged encoder says of hidden parts, in its own terms."""
    encoder, predictor = mlp(24, 48, 16, act=nn.GELU), mlp(16 + 24, 32, 16, act=nn.GELU)
    target = copy.deepcopy(encoder).requires_grad_(False)
    model = nn.ModuleDict({"encoder": encoder, "predictor": predictor})
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    basis = torch.randn(5, 24)

    def loss_of(_: int) -> Tensor:
        x = torch.randn(32, 5) @ basis
        mask = (torch.rand(32, 24) < 0.5).float()
        wanted = functional.layer_norm(target(x), (16,))
        return functional.smooth_l1_loss(predictor(torch.cat([encoder(x * mask), mask], 1)), wanted)

    fit(watch, model, adam, loss_of, steps, after=lambda _: follow(target, encoder, 0.01))


@loop(1000)
def fifth_facts(watch: Watch, steps: int) -> None:
    """TransE: entities and relations as vectors, negative facts, entities back to length one after each update."""
    model = nn.ModuleDict({"entities": nn.Embedding(120, 16), "relations": nn.Embedding(6, 16)})
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(_: int) -> Tensor:
        head, relation = torch.randint(0, 120, (48,)), torch.randint(0, 6, (48,))
        tail = (head * (relation + 2) + 3) % 120
        wrong = torch.randint(0, 120, (48,))
        moved = model["entities"](head) + model["relations"](relation)
        near, far = ((moved - model["entities"](end)).norm(dim=1) for end in (tail, wrong))
        return (1 + near - far).relu().mean()

    def shorten(_: int) -> None:
        with torch.no_grad():
            model["entities"].weight.div_(model["entities"].weight.norm(dim=1, keepdim=True).clamp(min=1))

    fit(watch, model, adam, loss_of, steps, after=shorten)


@loop(1000)
def fifth_two_towers(watch: Watch, steps: int) -> None:
    """Users and items with popular ones, negatives from the batch, Adagrad."""
    model = nn.ModuleDict({"people": nn.Embedding(300, 16), "goods": nn.Embedding(200, 16)})
    model["top"] = nn.Linear(16, 16)
    adagrad = torch.optim.Adagrad(model.parameters(), lr=0.05)

    def loss_of(_: int) -> Tensor:
        user = torch.randint(0, 300, (32,))
        item = (user * 7 + (torch.rand(32) ** 3 * 10).long()) % 200
        one = functional.normalize(model["top"](model["people"](user)), dim=1)
        two = functional.normalize(model["goods"](item), dim=1)
        return functional.cross_entropy(one @ two.t() / 0.1, torch.arange(32))

    fit(watch, model, adagrad, loss_of, steps)


@loop(800)
def fifth_soft_choices(watch: Watch, steps: int) -> None:
    """Discrete codes by Gumbel noise at a temperature that falls each hundred steps."""
    model = nn.ModuleDict({"into": mlp(24, 48, 24), "back": mlp(24, 48, 24)})
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    basis = torch.randn(3, 24)

    def loss_of(step: int) -> Tensor:
        x = torch.randn(32, 3) @ basis
        logits = model["into"](x).view(32, 4, 6)
        code = functional.gumbel_softmax(logits, max(0.5, math.exp(-1e-3 * (step // 100) * 100)))
        chance = logits.softmax(-1)
        apart = (chance * (chance * 6 + 1e-9).log()).sum((1, 2)).mean()
        return functional.mse_loss(model["back"](code.flatten(1)), x) * 24 + 0.1 * apart

    fit(watch, model, adam, loss_of, steps)


@loop(900)
def fifth_prototypes(watch: Watch, steps: int) -> None:
    """Few-shot episodes: classes by the nearest mean of five examples, StepLR."""
    model = mlp(16, 48, 24)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_of(_: int) -> Tensor:
        centres = torch.randn(5, 1, 16)
        rows = model((centres + 0.9 * torch.randn(5, 10, 16)).flatten(0, 1)).view(5, 10, 24)
        means = rows[:, :5].mean(1)
        return functional.cross_entropy(-torch.cdist(rows[:, 5:].flatten(0, 1), means), torch.arange(25) // 5)

    fit(watch, model, adam, loss_of, steps, schedules.StepLR(adam, 300, 0.5))


@loop(700)
def fifth_differential(watch: Watch, steps: int) -> None:
    """A neural ODE: the same small network in each of a few steps of Runge-Kutta along a spiral."""
    field = mlp(2, 32, 2, act=nn.Tanh)
    for part in field:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, 0, 0.1)
    rms = torch.optim.RMSprop(field.parameters(), lr=1e-3)
    turn = torch.tensor([[-0.1, -2.0], [2.0, -0.1]])

    def loss_of(_: int) -> Tensor:
        x = torch.randn(20, 2) * 2
        wanted, found = x, x
        for _part in range(6):
            for _small in range(2):
                wanted = wanted + 0.025 * (wanted**3).clamp(-8, 8) @ turn
            middle = found + 0.025 * field(found.clamp(-2, 2) ** 3)
            found = found + 0.05 * field(middle.clamp(-2, 2) ** 3)
        return (wanted - found).abs().mean()

    fit(watch, field, rms, loss_of, steps)


@loop(800)
def fifth_spots(watch: Watch, steps: int) -> None:
    """An image drawn by spots of light: places, sizes and colours are the parameters, each kind with its rate."""

    class Spots(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.sizes = nn.Parameter(torch.rand(24, 2)), nn.Parameter(torch.full((24, 1), -2.0))
            self.light = nn.Parameter(torch.rand(24, 1) * 0.1)

        def forward(self, at: Tensor) -> Tensor:
            apart = (at[:, None] - self.places).square().sum(-1)
            found: Tensor = (-apart / self.sizes.exp().square().t()).exp() @ self.light
            return found

    model = Spots()
    adam = torch.optim.Adam(
        [
            {"params": [model.places], "lr": 2e-3},
            {"params": [model.sizes], "lr": 5e-3},
            {"params": [model.light], "lr": 1e-2},
        ],
        eps=1e-15,
    )

    def loss_of(_: int) -> Tensor:
        at = torch.rand(256, 2)
        wanted = ((at[:, :1] * 9).sin() * (at[:, 1:] * 7).cos()).relu()
        return functional.l1_loss(model(at), wanted)

    fit(watch, model, adam, loss_of, steps, schedules.ExponentialLR(adam, 0.998))
