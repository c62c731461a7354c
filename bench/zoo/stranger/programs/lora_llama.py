"""LoRA with peft on a tiny Llama: frozen base, adapters, a trained head; a loop of one's own."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler, topic_text
from peft import LoraConfig, get_peft_model
from torch.optim.lr_scheduler import OneCycleLR
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, LENGTH = 64, 32


def main() -> None:
    job = Job(steps=260, faults=["adapters-off", "merged", "scaling-high", "adapters-blank", "mask-inverted"])
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.08,
    )
    base = LlamaForCausalLM(config)
    adapters = LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"],
        modules_to_save=["lm_head"],
    )
    model = get_peft_model(base, adapters)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3, weight_decay=0.0)
    schedule = OneCycleLR(optimizer, max_lr=5e-3, total_steps=job.steps, pct_start=0.2)
    text = topic_text(5000, LENGTH, VOCAB, job.seed)
    sampler = Sampler(len(text), job.seed)
    model.train()
    for step in range(job.steps):
        tokens = text[sampler.take(16)]
        mask = torch.ones_like(tokens)
        mask[:, 28:] = 0
        labels = tokens.masked_fill(mask == 0, -100)
        if job.on("mask-inverted", step):
            mask = 1 - mask
        if job.once("adapters-off", step):
            for module in model.modules():
                if hasattr(module, "lora_A"):
                    module.enable_adapters(False)
        if job.once("merged", step):
            model.merge_adapter()
        if job.once("scaling-high", step):
            for module in model.modules():
                if hasattr(module, "lora_A"):
                    module.scaling["default"] *= 8
        if job.once("adapters-blank", step):
            for module in model.modules():
                if hasattr(module, "reset_lora_parameters"):
                    module.reset_lora_parameters("default", True)
        logits = model(input_ids=tokens, attention_mask=mask).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        job.log(step, loss.item())
    job.finish(model)


if __name__ == "__main__":
    main()
