"""Small real trainings, each made slow in one way, for the tests of what tells where the time goes."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import vario

PAUSE = 0.02
"""Much longer than anything else in a step, also on a busy machine."""
COMPUTING = 2 * PAUSE
"""The same of forward and backward: they are named only if all the rest, the monitor too, is below its limit."""


class Rows(Dataset):
    def __init__(self, num=200, pause=0.0):
        generator = torch.Generator().manual_seed(0)
        self.x, self.pause = torch.randn(num, 16, generator=generator), pause

    def __len__(self):
        return len(self.x)

    def __getitem__(self, at):
        if self.pause:
            time.sleep(self.pause)
        return self.x[at]


class Net(nn.Module):
    def __init__(self, pause=0.0):
        super().__init__()
        self.inner, self.pause = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)), pause

    def forward(self, x):
        if self.pause:
            time.sleep(self.pause)
        return self.inner(x)


def paused_collate(rows):
    time.sleep(PAUSE)
    return torch.stack(rows)


class PausedSave(dict):
    """A state whose pickling takes a while."""

    def __reduce__(self):
        time.sleep(5 * PAUSE)
        return dict, (dict(self),)


def train(path, slow, steps=30, **options):
    """Train with one part of each step slowed: a dataset, collate, forward, backward, optimizer, between, ..."""
    torch.manual_seed(0)
    model = Net(COMPUTING if slow == "forward" else 0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if slow == "optimizer":
        optimizer.register_step_pre_hook(lambda *_: time.sleep(PAUSE))
    if slow == "backward":
        model.inner[1].register_full_backward_hook(lambda *_: time.sleep(COMPUTING))
    collate = paused_collate if slow == "collate" else torch.stack
    loader = DataLoader(Rows(8 * steps, PAUSE / 8 if slow == "dataset" else 0.0), batch_size=8, collate_fn=collate)
    evaluated = DataLoader(Rows(8, 5 * PAUSE / 8 if slow == "evaluation" else 0.0), batch_size=8)
    options = {"directory": str(path.parent), "name": path.name, "strict": True, **options}
    with vario.watch(model, optimizer, **options) as monitor:
        for step, x in enumerate(loader):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            if slow == "loss":
                time.sleep(PAUSE)
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
            if slow == "between":
                time.sleep(PAUSE)
            if slow == "evaluation" and step % 5 == 2:
                model.eval()
                with torch.no_grad():
                    for rows in evaluated:
                        model(rows)
                model.train()
            if slow == "checkpoint" and step % 5 == 2:
                torch.save({"model": model.state_dict(), "more": PausedSave()}, path.parent / "checkpoint.pt")
    return vario.open_run(monitor.path)
