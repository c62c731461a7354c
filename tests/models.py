"""Tiny real models, one for each thing that goes wrong with big ones."""

import dataclasses

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Perceptron(nn.Module):
    """Two layers with dropout."""

    def __init__(self, width=8, dropout=0.25):
        super().__init__()
        self.up = nn.Linear(4, width)
        self.act = nn.Tanh()
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(width, 3)

    def forward(self, x):
        return self.down(self.dropout(self.act(self.up(x))))


class Convolutional(nn.Module):
    """Convolution, batch norm and an activation that overwrites its input."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        return self.head(self.act(self.norm(self.conv(x))).mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM, which returns nested tuples."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        hidden, _ = self.lstm(x)
        return self.head(hidden[:, -1])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


class Language(nn.Module):
    """A GPT without its attention: embedding, blocks, head, and a dict as output; checkpointed if asked to."""

    def __init__(self, width=8, num_blocks=2, tied=False, checkpointing=None):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(num_blocks))
        self.head = nn.Linear(width, 16, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        self.checkpointing = checkpointing

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            if self.checkpointing:
                x = checkpoint(layer, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = layer(x)
        return {"logits": self.head(x), "hidden": (x,)}


@dataclasses.dataclass
class Answer:
    score: torch.Tensor
    parts: tuple
    note: str = "not a tensor"


class Nested(nn.Module):
    """Takes and returns tensors in every kind of wrapping."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)

    def forward(self, pair, *, options):
        left, right = pair
        a = self.first(left)
        b = self.second(right * options["scale"])
        return Answer(a + b, (a, {"b": [b, None, 3]}))


class Partial(nn.Module):
    """One layer is frozen and one is used only when asked for."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4)
        self.frozen.requires_grad_(False)
        self.used = nn.Linear(4, 3)
        self.spare = nn.Linear(4, 3)

    def forward(self, x, with_spare=False):
        x = self.frozen(x)
        return self.used(x) + self.spare(x) if with_spare else self.used(x)


class Core(nn.Module):
    """Attention itself: queries, keys and values in, b,s,h,d."""

    def __init__(self, is_causal):
        super().__init__()
        self.is_causal = is_causal

    def forward(self, query, key, value, scale=None):
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal, scale=scale)
        return mixed.transpose(1, 2)


class AttentionBlock(nn.Module):
    def __init__(self, width, heads, is_causal):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.core = Core(is_causal)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        return x + self.out(self.core(query, key, value, None).flatten(2))


class Attentive(nn.Module):
    """A small transformer without feed-forward parts: causal attention, then attention that sees everything."""

    def __init__(self, width=8, heads=2, checkpointing=None):
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.layers = nn.ModuleList([AttentionBlock(width, heads, True), AttentionBlock(width, heads, False)])
        self.head = nn.Linear(width, 16)
        self.checkpointing = checkpointing

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            if self.checkpointing:
                x = checkpoint(layer, x, use_reentrant=self.checkpointing == "reentrant")
            else:
                x = layer(x)
        return {"logits": self.head(x)}


def batch(seed, shape=(6, 4)):
    """A batch of numbers, the same for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def ids(seed, shape=(3, 5)):
    """A batch of tokens, the same for the same seed."""
    return torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(seed))


def language_loss(model, tokens):
    logits = model(tokens)["logits"]
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
