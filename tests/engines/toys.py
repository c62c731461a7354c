"""A tiny language model with sizes that divide by nothing, a frozen and an unused parameter; and its batches."""

import torch
from torch import nn

VOCABULARY = 11
STEPS = 3
CLIP = 0.5


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Toy(nn.Module):
    def __init__(self, width=6, depth=2, spare=True):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.spare = nn.Linear(width, 5) if spare else None  # nobody calls it
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.frozen
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make(rounded=False, **options):
    torch.manual_seed(0)
    model = Toy(**options)
    return model.bfloat16().float() if rounded else model


def adam(model, groups=1):
    trained = [p for p in model.parameters() if p.requires_grad]
    if groups == 2:
        matrices, vectors = ([p for p in trained if (p.dim() > 1) is many] for many in (True, False))
        trained = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    # A large eps: the updates of tiny gradients must not hang on the last bits of a sum over ranks.
    return torch.optim.AdamW(trained, lr=0.01, eps=1e-3)


def tokens(step, micro_step, rank):
    generator = torch.Generator().manual_seed(10_000 * step + 100 * micro_step + rank)
    return torch.randint(0, VOCABULARY, (4, 7), generator=generator)


def loss(model, batch, accumulation=1):
    output = model(batch)
    logits = output if isinstance(output, torch.Tensor) else output.logits
    return nn.functional.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), batch[:, 1:].reshape(-1)) / accumulation
