"""Draw docs/images/memory.svg: what `vario memory` prints about a model of 8 billion parameters."""

from __future__ import annotations

from pathlib import Path

import terminal_picture

from vario.analysis.building import build_model
from vario.analysis.memory import predict_memory
from vario.analysis.memory_text import prediction_panel

MODEL = Path(__file__).parents[1] / "examples" / "models" / "llama-8b.json"


def main() -> None:
    """Predict, and draw what is printed."""
    built = build_model(str(MODEL), 4, 2048, "bfloat16")
    found = predict_memory(
        built.model,
        batch_size=4,
        sequence_length=2048,
        precision="bf16",
        optimizer="adamw_fused",
        checkpointing=True,
    )
    command = "vario memory --model llama-8b.json --batch 4 --seq 2048 --optimizer adamw_fused --checkpointing"
    terminal_picture.save("memory", command, prediction_panel(found, "LlamaForCausalLM, batch 4"))


if __name__ == "__main__":
    main()
