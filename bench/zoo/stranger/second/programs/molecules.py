"""Properties of small made-up molecules: a graph isomorphism network with batch norm, a plateau schedule."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn

ATOMS, WIDTH = 4, 48


class Molecule(NamedTuple):
    """Kinds of atoms, bonds in both directions, and the property."""

    atoms: Tensor
    bonds: Tensor
    target: float


class Batch(NamedTuple):
    """Several molecules as one graph."""

    atoms: Tensor
    bonds: Tensor
    owner: Tensor
    targets: Tensor


def make_molecules(count: int, seed: int) -> list[Molecule]:
    """Random trees with some rings. The property counts bonds between kinds of atoms and heavy neighbours."""
    generator = torch.Generator().manual_seed(seed)
    strength = torch.randn(ATOMS, ATOMS, generator=generator)
    found = []
    for _ in range(count):
        size = int(torch.randint(6, 16, (1,), generator=generator))
        atoms = torch.randint(0, ATOMS, (size,), generator=generator)
        parents = (torch.rand(size - 1, generator=generator) * torch.arange(1, size)).long()
        ends = torch.stack([torch.arange(1, size), parents])
        rings = torch.randint(0, size, (2, 2), generator=generator)
        ends = torch.cat([ends, rings], dim=1)
        value = strength[atoms[ends[0]], atoms[ends[1]]].sum() / size**0.5
        value += 0.3 * torch.randn((), generator=generator)
        found.append(Molecule(atoms, torch.cat([ends, ends.flip(0)], dim=1), float(value)))
    return found


def collate(molecules: list[Molecule], offsets: bool = True, both: bool = True) -> Batch:
    atoms, bonds, owner, start = [], [], [], 0
    for number, molecule in enumerate(molecules):
        atoms.append(molecule.atoms)
        ends = molecule.bonds if both else molecule.bonds[:, : molecule.bonds.shape[1] // 2]
        bonds.append(ends + start if offsets else ends)
        owner.append(torch.full((len(molecule.atoms),), number))
        start += len(molecule.atoms)
    targets = torch.tensor([molecule.target for molecule in molecules])
    return Batch(torch.cat(atoms), torch.cat(bonds, dim=1), torch.cat(owner), targets)


class Convolution(nn.Module):
    """Adds neighbours, then a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.own = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        gathered = torch.zeros_like(x).index_add(0, bonds[1], x[bonds[0]])
        return F.relu(self.mlp((1 + self.own) * x + gathered))


class GIN(nn.Module):
    """Atoms to a property of the molecule."""

    def __init__(self) -> None:
        super().__init__()
        self.atom = nn.Embedding(ATOMS, WIDTH)
        self.convs = nn.ModuleList(Convolution() for _ in range(3))
        self.readout = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, batch: Batch) -> Tensor:
        x = self.atom(batch.atoms)
        for conv in self.convs:
            x = x + conv(x, batch.bonds)
        size = torch.bincount(batch.owner).clamp(min=1)
        pooled = torch.zeros(len(batch.targets), WIDTH).index_add(0, batch.owner, x)
        return self.readout(pooled / size[:, None] ** 0.5)


class Training:
    """The loop with what it needs."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.molecules = make_molecules(2400, job.seed)
        self.by_size = sorted(self.molecules, key=lambda molecule: len(molecule.atoms))
        self.model = GIN()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2.5e-3)
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(self.optimizer, factor=0.4, patience=4)
        self.recent: list[float] = []

    def batch(self, step: int) -> Batch:
        reach = len(self.molecules)
        if self.job.recipe == "growing-molecules":
            reach = 800 if step < 100 else 1600 if step < 200 else reach
        rows = torch.randint(0, reach, (32,)).tolist()
        source = self.by_size if self.job.recipe == "growing-molecules" else self.molecules
        return collate(
            [source[row] for row in rows],
            offsets=not self.job.on("bonds-not-offset", step),
            both=not self.job.on("bonds-one-way", step),
        )

    def swap_layers(self) -> None:
        first, second = (self.model.convs[number].state_dict() for number in (0, 2))
        kept = {name: value.clone() for name, value in first.items()}
        self.model.convs[0].load_state_dict(second)
        self.model.convs[2].load_state_dict(kept)

    def step(self, step: int) -> float:
        if self.job.once("layers-swapped", step):
            self.swap_layers()
        if self.job.once("plateau-mode", step):
            self.plateau.mode, self.plateau.best = "max", float("inf")
            self.plateau.patience = 0
        batch = self.batch(step)
        predicted = self.model(batch)
        if self.job.fault != "broadcast-loss":
            predicted = predicted.squeeze(1)
        loss = (predicted - batch.targets).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.recent.append(loss.item())
        if step % 10 == 9:
            self.plateau.step(sum(self.recent[-10:]) / 10)
        return loss.item()


def main() -> None:
    job = Job(
        steps=320,
        faults=["bonds-not-offset", "bonds-one-way", "layers-swapped", "plateau-mode"],
        at_start=["broadcast-loss"],
        recipes=["plain", "growing-molecules"],
    )
    training = Training(job)
    for step in range(job.steps):
        job.log(step, training.step(step), rate=training.optimizer.param_groups[0]["lr"])
    job.finish(training.model)


if __name__ == "__main__":
    main()
