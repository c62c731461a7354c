"""Sparse gradients of embeddings with SparseAdam, beside Adam for the rest; a sparse matrix as input."""

import torch
from torch import nn

torch.manual_seed(0)
bag = nn.EmbeddingBag(200, 16, mode="sum", sparse=True)
table = nn.Embedding(50, 16, sparse=True)
head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
model = nn.ModuleList([bag, table, head])
sparse = torch.optim.SparseAdam([*bag.parameters(), *table.parameters()], lr=1e-2)
dense = torch.optim.Adam(head.parameters(), lr=1e-3)
links = torch.eye(24).roll(1, 0).to_sparse()
for _ in range(50):
    words, one = torch.randint(0, 200, (24, 6)), torch.randint(0, 50, (24,))
    seen = torch.sparse.mm(links, bag(words))
    out = head(torch.cat([seen, table(one)], 1))
    loss = (out.squeeze(1) - (one % 7) / 7).square().mean()
    sparse.zero_grad()
    dense.zero_grad()
    loss.backward()
    sparse.step()
    dense.step()
    print("loss", loss.item().hex())
print("steps", 50)
