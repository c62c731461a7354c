"""Memory by formula, for models that cannot be simulated. Rough, and labelled as such."""

from __future__ import annotations

from typing import Any

from vario.analysis.parameters import ELEMENT_BYTES, state_bytes
from vario.backends.gpus import GIB

BYTES_PER_TOKEN_AND_WIDTH = 34
"""One transformer layer in 16 bits with fused attention: inputs of the matmuls, norms, dropout masks."""


def estimate(model: Any, batch_size: int, sequence_length: int, precision: str, why: str) -> dict[str, Any]:
    """Estimate weights, gradients and AdamW's state exactly, and activations from the sizes in a transformers
    config."""
    kept = state_bytes(model, precision)
    activations = _activation_bytes(getattr(model, "config", None), batch_size * sequence_length, precision)
    note = f"not simulated: {why}"
    if activations is None:
        note += " The model's sizes are unknown, so the total does not include activations."
    total = kept.total + (activations or 0)
    return {
        "parameters_gb": kept.parameters / GIB,
        "gradients_gb": kept.gradients / GIB,
        "optimizer_gb": kept.optimizer / GIB,
        "activations_gb": (activations or 0) / GIB,
        "temporary_gb": 0.0,
        "total_estimated_gb": total / GIB,
        "reserved_gb": total / GIB,
        "method": "formula",
        "note": note,
    }


def _activation_bytes(config: Any, num_tokens: int, precision: str) -> int | None:
    width, layers = getattr(config, "hidden_size", None), getattr(config, "num_hidden_layers", None)
    if not width or not layers:
        return None
    wide = 1 if ELEMENT_BYTES[precision] == 2 or precision.endswith("mixed") else 2
    # The logits for the whole vocabulary, once as computed and twice in float32 for the loss.
    words = int(getattr(config, "vocab_size", 0) or 0) * (2 * wide + 8)
    return int(num_tokens * (BYTES_PER_TOKEN_AND_WIDTH * wide * width * layers + words))
