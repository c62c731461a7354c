"""A recurrent language model: the hidden state goes from chunk to chunk, detached; rates are changed by hand."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(20, 16), nn.LSTM(16, 24, 2), nn.Linear(24, 20)

    def forward(self, tokens, hidden):
        rows, hidden = self.rnn(self.words(tokens), hidden)
        return self.out(rows).view(-1, 20), hidden


torch.manual_seed(0)
model, rate = Model(), 2.0
text = (torch.arange(8 * 161) * 7 % 20).view(8, 161).T.contiguous()
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(3):
    hidden = (torch.zeros(2, 8, 24), torch.zeros(2, 8, 24))
    for start in range(0, 160, 10):
        hidden = tuple(part.detach() for part in hidden)
        model.zero_grad()
        out, hidden = model(text[start : start + 10], hidden)
        loss = nn.functional.cross_entropy(out, text[start + 1 : start + 11].reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        print("loss", loss.item().hex())
    for group in optimizer.param_groups:
        group["lr"] /= 4.0
print("steps", 48)
