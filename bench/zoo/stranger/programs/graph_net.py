"""A graph network on communities of nodes: whole graph in each step, dropout, Adam with weight decay."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

NODES, FEATURES, CLASSES = 600, 32, 6


def communities(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features, edges, and the class of each node."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (NODES,), generator=generator)
    same = labels[:, None] == labels[None, :]
    chance = torch.where(same, 0.05, 0.006)
    edges = (torch.rand(NODES, NODES, generator=generator) < chance).float().triu(1)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    features = 0.6 * centres[labels] + torch.randn(NODES, FEATURES, generator=generator)
    return features, edges + edges.T, labels


def scaled(edges: Tensor) -> Tensor:
    """Edges with loops, divided by the root of both degrees."""
    edges = edges + torch.eye(NODES)
    root = edges.sum(1).rsqrt()
    return edges * root[:, None] * root[None, :]


class Network(nn.Module):
    """Three graph convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 64)
        self.second = nn.Linear(64, 64)
        self.third = nn.Linear(64, CLASSES)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.first(edges @ x))
        x = F.relu(self.second(edges @ self.drop(x)))
        return self.third(edges @ self.drop(x))


def main() -> None:
    job = Job(
        steps=350,
        faults=["edges-raw", "edges-shuffled", "dropout-off", "labels-of-others", "layer-left-out"],
        at_start=["layer-not-trained"],
    )
    features, edges, labels = communities(job.seed)
    train = torch.rand(NODES) < 0.5
    flow = scaled(edges)
    order = torch.randperm(NODES, generator=torch.Generator().manual_seed(job.seed))
    model = Network()
    trained = list(model.parameters())
    if job.on("layer-not-trained", 0):
        trained = [*model.first.parameters(), *model.third.parameters()]
    optimizer = torch.optim.Adam(trained, lr=5e-3, weight_decay=5e-4)
    for step in range(job.steps):
        model.train()
        if job.once("edges-raw", step):
            flow = edges + torch.eye(NODES)
        if job.once("edges-shuffled", step):
            flow = scaled(edges[order])
        if job.on("dropout-off", step):
            model.drop.p = 0.0
        if job.once("layer-left-out", step):
            model.second.requires_grad_(False)
        answers = labels[order] if job.on("labels-of-others", step) else labels
        noisy = features + 0.1 * torch.randn_like(features)
        loss = F.cross_entropy(model(noisy, flow)[train], answers[train])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        job.log(step, loss.item())
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                right = model(features, flow).argmax(1)[~train] == labels[~train]
            print(f"validation {float(right.float().mean())!r}")
    job.finish(model)


if __name__ == "__main__":
    main()
