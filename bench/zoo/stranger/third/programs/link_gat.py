"""Which pairs of nodes are linked: graph attention on sampled neighbourhoods, random pairs as negatives."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from common import Job, Sampler
from torch import Tensor, nn

NODES, FEATURES, HEADS, SIZE, PAIRS = 500, 16, 4, 16, 96
CODE = SimpleNamespace(by_source=False)


class Graph:
    """Nodes near each other in a hidden space are linked; features are noisy views of it."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        hidden = torch.randn(NODES, 3, generator=generator)
        distance = torch.cdist(hidden, hidden)
        likely = torch.sigmoid(6 * (0.75 - distance)).triu(1)
        self.pairs = (torch.rand(NODES, NODES, generator=generator) < 0.6 * likely).nonzero().T
        view = torch.randn(3, FEATURES, generator=generator)
        self.features = hidden @ view + 1.5 * torch.randn(NODES, FEATURES, generator=generator)
        self.linked = {(a, b) for a, b in self.pairs.T.tolist()}


def neighbourhood(pairs: Tensor, seeds: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The nodes within two steps of some nodes, and the links among them that were drawn, by place in that list."""
    both = torch.cat([pairs, pairs.flip(0)], dim=1)
    wanted, drawn = seeds.unique(), []
    for _ in range(2):
        reached = torch.zeros(NODES, dtype=torch.bool)
        reached[wanted] = True
        found = both[:, reached[both[1]]]
        found = found[:, torch.randperm(found.shape[1])]
        found = found[:, found[1].argsort(stable=True)]
        first = torch.searchsorted(found[1].contiguous(), found[1].contiguous())
        found = found[:, torch.arange(found.shape[1]) - first < most]
        drawn.append(found)
        wanted = torch.cat([wanted, found[0]]).unique()
    place = torch.zeros(NODES, dtype=torch.long)
    place[wanted] = torch.arange(len(wanted))
    return wanted, place[torch.cat(drawn, dim=1).unique(dim=1)]


class GraphAttention(nn.Module):
    """Each node takes from its neighbours, and from itself, by learned weights that add up to one."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inside, HEADS * SIZE, bias=False)
        self.att_src = nn.Parameter(0.2 * torch.randn(HEADS, SIZE))
        self.att_dst = nn.Parameter(0.2 * torch.randn(HEADS, SIZE))
        self.bias = nn.Parameter(torch.zeros(HEADS * SIZE))
        self.skip = nn.Linear(inside, HEADS * SIZE)

    def forward(self, x: Tensor, links: Tensor) -> Tensor:
        own = torch.arange(len(x)).expand(2, -1)
        source, target = torch.cat([links, own], dim=1)
        values = self.lin(x).view(-1, HEADS, SIZE)
        scores = (values * self.att_src).sum(-1)[source] + (values * self.att_dst).sum(-1)[target]
        weights = (F.leaky_relu(scores, 0.2) - scores.detach().amax()).exp()
        group = source if CODE.by_source else target
        total = torch.zeros(len(x), HEADS).index_add(0, group, weights)
        weights = weights / (total[group] + 1e-9)
        out = torch.zeros_like(values).index_add(0, target, weights[..., None] * values[source])
        return out.flatten(1) + self.bias + self.skip(x)


class LinkPredictor(nn.Module):
    """Features and links to vectors of nodes, and pairs of vectors to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = GraphAttention(FEATURES), GraphAttention(HEADS * SIZE)
        self.norm = nn.LayerNorm(HEADS * SIZE)
        self.drop = nn.Dropout(0.1)
        self.pair = nn.Sequential(nn.Linear(HEADS * SIZE, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x: Tensor, links: Tensor, pairs: Tensor) -> Tensor:
        x = self.drop(F.elu(self.norm(self.layer1(x, links))))
        x = self.layer2(x, links)
        return self.pair(x[pairs[0]] * x[pairs[1]]).squeeze(1)


def main() -> None:
    job = Job(
        steps=260,
        faults=["answers-in-graph", "negatives-are-links", "weights-by-source", "numbers-in-batch"],
        recipes=["plain", "more-neighbours"],
    )
    graph = Graph(job.seed)
    model = LinkPredictor()
    optimizer = torch.optim.NAdam(model.parameters(), lr=4e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.995)
    sampler = Sampler(graph.pairs.shape[1], job.seed)
    for step in range(job.steps):
        CODE.by_source = job.on("weights-by-source", step)
        rows = sampler.take(PAIRS)
        positive = graph.pairs[:, rows]
        negative = torch.randint(0, NODES, (2, PAIRS))
        if job.on("negatives-are-links", step):
            negative[:, : PAIRS // 2] = graph.pairs[:, torch.randint(0, graph.pairs.shape[1], (PAIRS // 2,))]
        known = torch.ones(graph.pairs.shape[1], dtype=torch.bool)
        if not job.on("answers-in-graph", step):
            known[rows] = False
        most = 16 if job.recipe == "more-neighbours" and step >= 130 else 6
        asked = torch.cat([positive, negative], dim=1)
        nodes, links = neighbourhood(graph.pairs[:, known], asked.flatten(), most)
        place = torch.zeros(NODES, dtype=torch.long)
        place[nodes] = torch.arange(len(nodes))
        features = graph.features[: len(nodes)] if job.on("numbers-in-batch", step) else graph.features[nodes]
        logits = model(features, links, place[asked])
        truth = torch.cat([torch.ones(PAIRS), torch.zeros(PAIRS)])
        loss = F.binary_cross_entropy_with_logits(logits, truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        job.log(step, loss.item(), right=((logits > 0) == (truth > 0)).float().mean().item())
    job.finish(model)


if __name__ == "__main__":
    main()
