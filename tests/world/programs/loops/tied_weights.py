"""A small language model whose output layer is its embedding."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(48, 32)
        self.places = nn.Parameter(torch.zeros(1, 12, 32))
        self.body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 48, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.body(self.words(tokens) + self.places, src_mask=mask, is_causal=True)
        logits = self.head(self.norm(hidden))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(0)
model = Model()
nn.init.normal_(model.words.weight, std=0.02)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(50):
    start = torch.randint(0, 48, (16, 1))
    tokens = (start + torch.arange(13)) % 48
    _, loss = model(tokens[:, :-1], tokens[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 50)
