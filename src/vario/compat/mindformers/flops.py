"""Floating-point operations of a transformer for one sample, from its configuration.

Forward and both gradients of backward, two operations per multiply-add; a recomputed forward is not counted. Causal
attention computes half of the scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES: Mapping[str, Sequence[str]] = {
    "hidden": ("hidden_size",),
    "layers": ("num_layers", "num_hidden_layers"),
    "heads": ("num_attention_heads", "num_heads", "n_head"),
    "key_heads": ("num_query_groups", "num_key_value_heads", "n_kv_heads"),
    "ffn": ("ffn_hidden_size", "intermediate_size"),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "length": ("seq_length", "max_position_embeddings"),
    "head_size": ("kv_channels", "head_dim"),
    "experts": ("num_moe_experts", "n_routed_experts", "num_experts"),
    "chosen": ("moe_router_topk", "num_experts_per_tok"),
    "expert_ffn": ("moe_ffn_hidden_size", "moe_intermediate_size"),
    "shared": ("n_shared_experts", "shared_expert_num"),
    "dense_layers": ("first_k_dense_replace",),
}
"""What the sizes are called in different models."""
NOT_COUNTED = ("q_lora_rank", "kv_lora_rank", "mamba_num_heads", "multi_latent_attention")
"""Settings of other architectures, whose operations are not counted here."""
NOT_GATED = ("gelu", "gelu_new", "relu", "fast_gelu")


def flops_per_sample(model_config: object) -> float | None:
    """Return the operations of one sample; None if the configuration does not say enough."""
    if not isinstance(model_config, Mapping) or any(model_config.get(name) for name in NOT_COUNTED):
        return None
    sizes = {what: _number(model_config, names) for what, names in NAMES.items()}
    hidden, layers, heads = sizes["hidden"], sizes["layers"], sizes["heads"]
    ffn, vocab, length = sizes["ffn"], sizes["vocab"], sizes["length"]
    if hidden is None or layers is None or heads is None or ffn is None or vocab is None or length is None:
        return None
    width = heads * (sizes["head_size"] or hidden / heads)
    key_width = width * (sizes["key_heads"] or heads) / heads
    attention = hidden * (2 * width + 2 * key_width) + length * width
    is_gated = bool(model_config.get("gated_linear_unit", str(model_config.get("hidden_act")) not in NOT_GATED))
    matmuls = 3 if is_gated else 2
    dense = matmuls * hidden * ffn
    per_token = layers * attention + hidden * vocab
    if sizes["experts"] and sizes["experts"] > 1:
        expert = matmuls * hidden * (sizes["expert_ffn"] or ffn)
        routed = expert * ((sizes["chosen"] or 1) + (sizes["shared"] or 0))
        num_dense = min(sizes["dense_layers"] or 0, layers)
        per_token += num_dense * dense + (layers - num_dense) * routed
    else:
        per_token += layers * dense
    return 3 * 2 * length * per_token


def _number(config: Mapping[str, Any], names: Sequence[str]) -> float | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None
