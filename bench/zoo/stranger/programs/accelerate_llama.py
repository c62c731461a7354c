"""A tiny Llama under accelerate: accumulation over four micro-batches, clipping, constant rate after warm-up."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import Job, Sampler, topic_text
from transformers import LlamaConfig, LlamaForCausalLM, get_constant_schedule_with_warmup

VOCAB, LENGTH, MICRO = 80, 32, 4


def main() -> None:
    job = Job(
        steps=220,
        faults=[
            "not-divided",
            "micro-batches-lost",
            "half-overflow",
            "half-underflow",
            "weights-rounded",
            "rows-spoilt",
        ],
    )
    accelerator = Accelerator(cpu=True)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        initializer_range=0.06,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = get_constant_schedule_with_warmup(optimizer, 15 * accelerator.num_processes)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    text = topic_text(9000, LENGTH, VOCAB, job.seed)
    sampler = Sampler(len(text), job.seed)
    scale = 1.0
    for step in range(job.steps):
        total = 0.0
        optimizer.zero_grad()
        for _ in range(MICRO):
            tokens = text[sampler.take(8)]
            if job.on("rows-spoilt", step):
                tokens[:6] = torch.randint(4, VOCAB, (6, LENGTH))
            if job.on("micro-batches-lost", step):
                optimizer.zero_grad()
            logits = model(input_ids=tokens).logits
            if job.on("half-overflow", step):
                scale *= 1.25
                logits = (logits * scale).half().float() / scale
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
            accelerator.backward(loss if job.on("not-divided", step) else loss / MICRO)
            total += loss.item() / MICRO
        if job.on("half-underflow", step):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.grad.copy_((parameter.grad * 2e-6).half().float() * 5e5)
        if not job.on("not-divided", step):
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if job.on("weights-rounded", step):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(parameter.bfloat16())
        job.log(step, total)
    job.finish(model)


if __name__ == "__main__":
    main()
