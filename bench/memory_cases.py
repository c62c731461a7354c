"""The training steps whose memory is predicted without a GPU and measured with one.

Every case is a real model of transformers, or a plain torch one, built from its configuration, and a way to train it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One model and one way to train it."""

    name: str
    family: str
    config: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    sequence: int = 1024
    precision: str = "fp32"
    optimizer: str = "adamw"
    checkpointing: bool = False
    padded: bool = False
    keeps_outputs: bool = False
    accumulation: int = 1
    clips: bool = True
    trains: str = ""
    """Only parameters whose name contains one of these words, separated by commas; all of them when empty."""


LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
LLAMA_3B = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
MEDIUM = {"n_embd": 1024, "n_layer": 24, "n_head": 16}
LARGE = {"n_embd": 1280, "n_layer": 36, "n_head": 20}
XL = {"n_embd": 1600, "n_layer": 48, "n_head": 25}
QWEN_MOE = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 32000,
    "use_cache": False,
    "tie_word_embeddings": True,
}

KNOWN = [
    Case("gpt2-fp32", "gpt2", batch=8, optimizer="adamw_fused", keeps_outputs=True),
    Case("gpt2-mixed", "gpt2", batch=8, precision="bf16-mixed", optimizer="adamw_fused", keeps_outputs=True),
    Case("gpt2-mixed-checkpoint", "gpt2", batch=8, precision="bf16-mixed", optimizer="adamw_fused",
         checkpointing=True, keeps_outputs=True),
    Case("gpt2-short-foreach", "gpt2", batch=1, sequence=128, optimizer="adamw", keeps_outputs=True),
    Case("gpt2-mixed-dropped-outputs", "gpt2", batch=8, precision="bf16-mixed", optimizer="adamw_fused"),
    Case("gpt2-medium-bf16-sgd", "gpt2", MEDIUM, batch=4, precision="bf16", optimizer="sgd", keeps_outputs=True),
    Case("bert-mixed-padded", "bert", batch=32, sequence=512, precision="bf16-mixed", optimizer="adamw_fused",
         padded=True, keeps_outputs=True),
    Case("vit-mixed", "vit", batch=64, precision="bf16-mixed", optimizer="adamw_fused", keeps_outputs=True),
    Case("qwen3-moe-bf16", "qwen3_moe", QWEN_MOE, batch=4, precision="bf16", optimizer="adamw_fused",
         keeps_outputs=True),
    Case("llama-1b-bf16", "llama", LLAMA_1B, batch=4, sequence=2048, precision="bf16", optimizer="adamw_fused",
         keeps_outputs=True),
    Case("llama-1b-mixed-checkpoint-foreach", "llama", LLAMA_1B, batch=4, sequence=2048, precision="bf16-mixed",
         optimizer="adamw", checkpointing=True, keeps_outputs=True),
    Case("llama-1b-bf16-frozen", "llama", LLAMA_1B, batch=4, sequence=2048, precision="bf16",
         optimizer="adamw_fused", trains="q_proj,v_proj", keeps_outputs=True),
    Case("gpt2-xl-mixed-checkpoint", "gpt2", XL, batch=4, precision="bf16-mixed", optimizer="adamw_fused",
         checkpointing=True, keeps_outputs=True),
    Case("llama-3b-bf16-checkpoint", "llama", LLAMA_3B, batch=2, sequence=2048, precision="bf16",
         optimizer="adamw_fused", checkpointing=True, keeps_outputs=True),
]  # fmt: skip
"""As the fourteen whose peaks were measured first."""

OTHERS = [
    Case("gpt2-fp16-mixed-accumulation", "gpt2", batch=4, precision="fp16-mixed", optimizer="adamw_fused",
         accumulation=4),
    Case("gpt2-medium-fp32-foreach", "gpt2", MEDIUM, batch=2, optimizer="adamw"),
    Case("gpt2-large-bf16-adafactor", "gpt2", LARGE, batch=4, precision="bf16", optimizer="adafactor"),
    Case("llama-1b-fp32-sgd", "llama", LLAMA_1B, batch=1, sequence=2048, optimizer="sgd"),
    Case("llama-1b-bf16-padded", "llama", LLAMA_1B, batch=4, sequence=1024, precision="bf16",
         optimizer="adamw", padded=True),
    Case("llama-3b-mixed-checkpoint-adafactor", "llama", LLAMA_3B, batch=1, sequence=4096, precision="bf16-mixed",
         optimizer="adafactor", checkpointing=True),
    Case("bert-large-fp32", "bert", {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16}, batch=8, sequence=512, optimizer="adamw"),
    Case("bert-bf16-short", "bert", batch=64, sequence=128, precision="bf16", optimizer="adamw_fused"),
    Case("vit-large-fp32-sgd", "vit", {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16}, batch=32, optimizer="sgd"),
    Case("vit-bf16-checkpoint", "vit", batch=128, precision="bf16", optimizer="adamw", checkpointing=True),
    Case("mixtral-mixed", "mixtral", {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 6,
         "num_attention_heads": 16, "num_key_value_heads": 8, "num_local_experts": 8, "vocab_size": 32000}, batch=2,
         precision="bf16-mixed", optimizer="adamw"),
    Case("gpt2-large-mixed", "gpt2", LARGE, batch=4, precision="bf16-mixed", optimizer="adamw_fused"),
    Case("llama-3b-bf16-frozen", "llama", LLAMA_3B, batch=4, sequence=1024, precision="bf16", optimizer="adamw",
         trains="q_proj,v_proj"),
    Case("t5-bf16", "t5", batch=16, sequence=512, precision="bf16", optimizer="adafactor"),
    Case("torch-encoder-mixed", "torch_encoder", batch=32, sequence=512, precision="bf16-mixed", optimizer="adamw"),
    Case("resnet-mixed-sgd", "resnet", batch=128, precision="bf16-mixed", optimizer="sgd"),
]  # fmt: skip
"""Chosen afterwards, to see whether what was learnt from the first ones holds elsewhere."""

HELD_OUT = [
    Case("opt-350m-mixed", "opt", {"hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16}, batch=8, sequence=512, precision="bf16-mixed", optimizer="adamw"),
    Case("qwen2-500m-mixed", "qwen2", {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
         "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}, batch=4,
         precision="bf16-mixed", optimizer="adamw_fused"),
    Case("mistral-1b-bf16-checkpoint", "mistral", {"hidden_size": 2048, "intermediate_size": 7168,
         "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 4}, batch=2, sequence=4096,
         precision="bf16", optimizer="adamw", checkpointing=True),
    Case("gemma2-600m-bf16", "gemma2", {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 256}, batch=2, precision="bf16",
         optimizer="adamw_fused"),
    Case("gpt-neox-400m-fp16", "gpt_neox", {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
         "num_attention_heads": 16, "vocab_size": 50304}, batch=4, precision="fp16", optimizer="adamw_fused"),
    Case("bloom-500m-bf16", "bloom", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}, batch=4, sequence=512,
         precision="bf16", optimizer="sgd"),
    Case("roberta-large-mixed-padded", "roberta", {"hidden_size": 1024, "intermediate_size": 4096,
         "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": 514}, batch=16, sequence=256,
         precision="bf16-mixed", optimizer="adamw", padded=True),
    Case("distilbert-fp32", "distilbert", batch=32, sequence=384, optimizer="adamw_fused", accumulation=2),
    Case("vit-huge-fp16-mixed", "vit", {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
         "num_attention_heads": 16, "patch_size": 14}, batch=16, precision="fp16-mixed", optimizer="adamw"),
    Case("swin-mixed", "swin", batch=64, precision="bf16-mixed", optimizer="adamw"),
    Case("convnext-mixed", "convnext", batch=64, precision="bf16-mixed", optimizer="adamw"),
    Case("olmoe-like-bf16", "olmoe", {"hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 8,
         "num_attention_heads": 8, "num_key_value_heads": 8, "num_experts": 16, "num_experts_per_tok": 4}, batch=2,
         precision="bf16", optimizer="adamw", checkpointing=True),
]  # fmt: skip
"""Measured only once the rules stood; nothing was changed after seeing them."""

CASES = {case.name: case for case in [*KNOWN, *OTHERS, *HELD_OUT]}


def make_model(case: Case) -> Any:
    """The case's model on the current default device and in the current default type."""
    if case.family == "torch_encoder":
        return _torch_encoder()
    import transformers as hf

    tokens, names = {"use_cache": False}, case.config
    made = {
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**tokens, **names)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**tokens, **names)),
        "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**names)),
        "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(num_labels=1000, **names)),
        "qwen3_moe": lambda: hf.Qwen3MoeForCausalLM(hf.Qwen3MoeConfig(**names)),
        "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**tokens, **names)),
        "t5": lambda: hf.T5ForConditionalGeneration(hf.T5Config(**tokens, decoder_start_token_id=0, **names)),
        "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**tokens, **names)),
        "qwen2": lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**tokens, **names)),
        "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**tokens, **names)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**tokens, **names)),
        "gpt_neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**tokens, **names)),
        "bloom": lambda: hf.BloomForCausalLM(hf.BloomConfig(**tokens, **names)),
        "roberta": lambda: hf.RobertaForMaskedLM(hf.RobertaConfig(**names)),
        "distilbert": lambda: hf.DistilBertForMaskedLM(hf.DistilBertConfig(**names)),
        "swin": lambda: hf.SwinForImageClassification(hf.SwinConfig(num_labels=1000, **names)),
        "convnext": lambda: hf.ConvNextForImageClassification(hf.ConvNextConfig(num_labels=1000, **names)),
        "olmoe": lambda: hf.OlmoeForCausalLM(hf.OlmoeConfig(**tokens, **names)),
        "resnet": lambda: hf.ResNetForImageClassification(hf.ResNetConfig(num_labels=1000, **names)),
    }
    model = made[case.family]()
    if case.checkpointing:
        model.gradient_checkpointing_enable()
    return model


def _torch_encoder() -> Any:
    import torch

    class Classifier(torch.nn.Module):
        """Torch's own encoder layers, no transformers in sight."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(32000, 768)
            layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
            self.head = torch.nn.Linear(768, 32000)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.encoder(self.embedding(tokens)))

    return Classifier()


def make_batch(case: Case, model: Any, device: str) -> Any:
    """One batch: random words or pictures."""
    import torch

    if case.family in ("vit", "resnet", "swin", "convnext"):
        pictures = torch.randn(case.batch, 3, 224, 224, device=device, dtype=next(model.parameters()).dtype)
        return {"pixel_values": pictures, "labels": torch.randint(0, 1000, (case.batch,), device=device)}
    words = 32000 if case.family == "torch_encoder" else model.config.vocab_size
    tokens = torch.randint(0, words, (case.batch, case.sequence), device=device)
    if case.family == "torch_encoder":
        return (tokens,)
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    if case.padded:
        mask = torch.ones_like(tokens)
        mask[:, -case.sequence // 8 :] = 0
        batch["attention_mask"] = mask
    return batch


def loss_of(case: Case, outputs: Any, batch: Any) -> Any:
    """The loss of one forward pass."""
    if case.family == "torch_encoder":
        import torch

        return torch.nn.functional.cross_entropy(outputs.flatten(0, 1), batch[0].flatten())
    return outputs.loss


def make_optimizer(case: Case, parameters: Any) -> Any:
    """The real optimizer, as its users call it on a GPU."""
    import torch

    made = {
        "adamw": lambda: torch.optim.AdamW(parameters, lr=1e-4, foreach=True),
        "adamw_fused": lambda: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9, foreach=True),
        "adafactor": lambda: torch.optim.Adafactor(parameters, lr=1e-4),
    }
    return made[case.optimizer]()
