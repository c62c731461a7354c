"""PyTorch Geometric: node classification on one graph, with masks."""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv

torch.manual_seed(0)
label = torch.randint(0, 3, (60,))
links = torch.stack([torch.randint(0, 60, (240,)), torch.randint(0, 60, (240,))])
links = links[:, label[links[0]] == label[links[1]]]
graph = Data(x=torch.randn(60, 12) + nn.functional.one_hot(label, 12), edge_index=links, y=label)
is_known = torch.rand(60) < 0.5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = GCNConv(12, 16), GATConv(16, 3, heads=2, concat=False)

    def forward(self, graph):
        hidden = nn.functional.dropout(self.first(graph.x, graph.edge_index).relu(), 0.5, self.training)
        return self.last(hidden, graph.edge_index)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
for _ in range(50):
    model.train()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(graph)[is_known], graph.y[is_known])
    loss.backward()
    optimizer.step()
    model.eval()
    right = (model(graph).argmax(1) == graph.y)[~is_known].sum()
    print("loss", loss.item().hex(), int(right))
print("steps", 50)
