"""Rows of different lengths through an LSTM as a PackedSequence."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16, padding_idx=0)
        self.rnn = nn.LSTM(16, 16, num_layers=2, bidirectional=True, dropout=0.1)
        self.out = nn.Linear(32, 5)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.words(words), lengths, enforce_sorted=False)
        rows, _ = pad_packed_sequence(self.rnn(packed)[0])
        return self.out(rows)


torch.manual_seed(0)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for _ in range(40):
    lengths = torch.randint(2, 9, (12,))
    words = torch.randint(1, 40, (int(lengths.max()), 12))
    for row, length in enumerate(lengths):
        words[length:, row] = 0
    out = model(words, lengths)
    loss = nn.functional.cross_entropy(out.flatten(0, 1), (words % 5).flatten(), reduction="none")
    loss = (loss * (words.flatten() > 0)).sum() / lengths.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
print("steps", 40)
