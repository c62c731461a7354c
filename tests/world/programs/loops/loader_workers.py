"""Batches from worker processes, forked and spawned, with augmentation that draws random numbers there."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        x = torch.full((8,), index / 96) + 0.1 * torch.randn(8)
        return x, x.sum().reshape(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps = 0
    for context in ("fork", "spawn"):
        loader = DataLoader(
            Rows(), 16, shuffle=True, num_workers=2, multiprocessing_context=context, persistent_workers=True
        )
        for _ in range(3):
            for x, y in loader:
                loss = nn.functional.mse_loss(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
                print("loss", loss.item().hex())
    print("steps", steps)
