"""A language model with switch layers: each token goes to one expert of limited capacity; balance and router losses."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from common import Job, Sampler, topic_text
from torch import Tensor, nn

VOCAB, LENGTH, WIDTH, EXPERTS = 64, 28, 48, 4


class Expert(nn.Module):
    """A feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.wi = nn.Linear(WIDTH, 96)
        self.wo = nn.Linear(96, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.wo(F.relu(self.wi(x)))


class SwitchLayer(nn.Module):
    """Sends each token to its best expert; tokens above the capacity pass by."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))
        self.capacity_factor = 1.5
        self.wrong_order = False
        self.bias: Tensor | None = None
        self.balance = self.router_z = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)
        scores = self.router(tokens)
        shares = scores.softmax(-1)
        chosen = (scores if self.bias is None else scores + self.bias).argmax(-1)
        load = F.one_hot(chosen, EXPERTS).float().mean(0)
        self.balance = EXPERTS * (load * shares.mean(0)).sum()
        self.router_z = scores.logsumexp(-1).square().mean()
        if self.bias is not None:
            self.bias = self.bias + 0.02 * (1 / EXPERTS - load).sign()
        capacity = math.ceil(self.capacity_factor * len(tokens) / EXPERTS)
        result = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().flatten()[:capacity]
            back = rows.roll(1) if self.wrong_order else rows
            result = result.index_add(0, back, expert(tokens[rows]) * shares[rows, number, None])
        return result.view_as(x)


class Layer(nn.Module):
    """Attention and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.switch = SwitchLayer()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.switch(self.ln2(x))


class SwitchModel(nn.Module):
    """Two layers with experts."""

    def __init__(self) -> None:
        super().__init__()
        self.tok = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.ln = nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.tok(tokens) + self.pos
        for layer in self.layers:
            x = layer(x, mask)
        return self.out(self.ln(x))


def main() -> None:
    job = Job(
        steps=260,
        faults=["capacity-tiny", "experts-copied", "balance-times-100", "tokens-unsorted-wrong"],
        at_start=["experts-left-out"],
        recipes=["plain", "bias-balancing"],
    )
    text = topic_text(6000, LENGTH + 1, VOCAB, job.seed)
    sampler = Sampler(len(text), job.seed)
    model = SwitchModel()
    switches = [layer.switch for layer in model.layers]
    if job.recipe == "bias-balancing":
        for switch in switches:
            switch.bias = torch.zeros(EXPERTS)
    trained = list(model.parameters())
    if job.fault == "experts-left-out":
        trained = [p for name, p in model.named_parameters() if "expert" not in name]
    optimizer = torch.optim.AdamW(trained, lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 15),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps - 15, eta_min=3e-4),
        ],
        milestones=[15],
    )
    for step in range(job.steps):
        if job.once("capacity-tiny", step):
            for switch in switches:
                switch.capacity_factor = 0.1
        if job.once("experts-copied", step):
            state = copy.deepcopy(switches[0].experts[0].state_dict())
            for expert in switches[0].experts:
                expert.load_state_dict(state)
        if job.once("tokens-unsorted-wrong", step):
            switches[1].wrong_order = True
        rows = text[sampler.take(16)]
        logits = model(rows[:, :-1])
        cross = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        balance = torch.stack([switch.balance for switch in switches]).sum()
        weight = 0.0 if job.recipe == "bias-balancing" else 0.01
        if job.on("balance-times-100", step):
            weight = 1.0
        loss = cross + weight * balance + 1e-3 * sum(switch.router_z for switch in switches)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        job.log(step, loss.item(), cross=cross.item(), balance=balance.item())
    job.finish(model)


if __name__ == "__main__":
    main()
