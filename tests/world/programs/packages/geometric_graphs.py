"""PyTorch Geometric: classification of whole graphs in batches."""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool

torch.manual_seed(0)
graphs = []
for number in range(80):
    nodes = int(torch.randint(4, 10, ()))
    ring = torch.arange(nodes)
    links = torch.stack([ring, (ring + 1 + number % 2) % nodes])
    graphs.append(Data(x=torch.randn(nodes, 4), edge_index=torch.cat([links, links.flip(0)], 1), y=number % 2))
body = GIN(4, 16, 2)
head = nn.Linear(16, 2)
optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=3e-3)
for _ in range(10):
    for batch in DataLoader(graphs, batch_size=16, shuffle=True):
        optimizer.zero_grad()
        out = head(global_add_pool(body(batch.x, batch.edge_index), batch.batch))
        loss = nn.functional.cross_entropy(out, batch.y)
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
print("steps", 50)
