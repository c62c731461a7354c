"""The models that benchmarks train: a Llama-like one for the GPU, a GPT for the CPU."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Root-mean-square normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, 1e-5)


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat((-second, first), -1) * sine


class LlamaAttention(nn.Module):
    """Grouped-query attention with rotary positions."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head = num_heads, num_kv_heads, width // num_heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, num_kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(width, num_kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, positions: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        batch, length, width = x.shape
        query = self.q_proj(x).view(batch, length, self.num_heads, self.head).transpose(1, 2)
        key = self.k_proj(x).view(batch, length, self.num_kv_heads, self.head).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, self.num_kv_heads, self.head).transpose(1, 2)
        query, key = rotate(query, *positions), rotate(key, *positions)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class LlamaMLP(nn.Module):
    """Gated feed-forward network."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """One decoder layer."""

    def __init__(self, width: int, num_heads: int, num_kv_heads: int, hidden: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = LlamaAttention(width, num_heads, num_kv_heads)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = LlamaMLP(width, hidden)

    def forward(self, x: torch.Tensor, positions: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """A decoder in the shape of TinyLlama: 1.1 billion parameters with the defaults."""

    def __init__(
        self,
        width: int = 2048,
        layers: int = 22,
        heads: int = 32,
        kv: int = 4,
        hidden: int = 5632,
        vocabulary: int = 32000,
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, kv, hidden) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.head = width // heads
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(ids)
        frequency = 1.0 / 10000 ** (torch.arange(0, self.head, 2, device=ids.device) / self.head)
        angle = torch.outer(torch.arange(ids.shape[1], device=ids.device), frequency).repeat(1, 2)
        positions = (angle.cos().to(x.dtype), angle.sin().to(x.dtype))
        for layer in self.layers:
            x = layer(x, positions)
        return self.lm_head(self.norm(x))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.act, self.down = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.ln_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0), is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.act(self.up(self.ln_2(x))))


class GPT(nn.Module):
    """A small GPT with tied embeddings: 33.7 million parameters with the defaults."""

    def __init__(
        self, width: int = 512, layers: int = 8, heads: int = 8, vocabulary: int = 16384, length: int = 128
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_loss(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the next token."""
    logits = model(ids)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
