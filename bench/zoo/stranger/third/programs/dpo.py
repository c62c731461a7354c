"""Direct preference optimisation of a small Llama with low-rank adapters; the reference is the model without them."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from common import Job
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, get_linear_schedule_with_warmup

VOCAB, KINDS, PAD, END, FIRST, ACCUMULATE = 42, 4, 0, 1, 2, 2


class Pairs(NamedTuple):
    """Better answers first, then the worse ones; which tokens are the answer's."""

    tokens: Tensor
    answer: Tensor


def pairs(count: int, longest: int) -> Pairs:
    """The prompt's first word tells which words an answer should have; worse answers have fewer of them."""
    better, worse = [], []
    for _ in range(count):
        kind = int(torch.randint(0, KINDS, (1,)))
        length = int(torch.randint(4, 9, (1,)))
        prompt = [FIRST + kind, *(FIRST + KINDS + torch.randint(0, 36, (length - 1,))).tolist()]
        for found, share in ((better, 0.75), (worse, 0.15)):
            size = int(torch.randint(5, 10, (1,)))
            fitting = torch.randint(0, 9, (size,)) * KINDS + kind
            words = torch.where(torch.rand(size) < share, fitting, torch.randint(0, 36, (size,)))
            found.append((prompt, [*(FIRST + KINDS + words).tolist(), END]))
    rows = [(prompt + answer)[:longest] for prompt, answer in [*better, *worse]]
    starts = torch.tensor([len(prompt) for prompt, _ in [*better, *worse]])
    width = max(map(len, rows))
    tokens = torch.tensor([row + [PAD] * (width - len(row)) for row in rows])
    return Pairs(tokens, (torch.arange(width) >= starts[:, None]) & (tokens != PAD))


def log_probabilities(model: nn.Module, batch: Pairs) -> Tensor:
    logits = model(input_ids=batch.tokens, attention_mask=(batch.tokens != PAD).long()).logits[:, :-1]
    each = logits.float().log_softmax(-1).gather(2, batch.tokens[:, 1:, None]).squeeze(2)
    return (each * batch.answer[:, 1:]).sum(1)


def main() -> None:
    job = Job(
        steps=200,
        faults=["pairs-swapped", "reference-with-adapters", "answers-cut-off", "steps-forgotten"],
        at_start=["both-matrices-zero"],
        recipes=["plain", "squared-later"],
    )
    warnings.filterwarnings("ignore")
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        initializer_range=0.12,
        pad_token_id=PAD,
        bos_token_id=None,
        eos_token_id=END,
    )
    lora = LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(LlamaForCausalLM(config), lora)
    if job.fault == "both-matrices-zero":
        for name, parameter in model.named_parameters():
            if "lora_A" in name:
                nn.init.zeros_(parameter)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 2 * job.steps)
    model, optimizer = accelerator.prepare(model, optimizer)
    beta = 0.3
    for step in range(job.steps):
        if job.once("steps-forgotten", step):
            for state in optimizer.state.values():
                state["step"].zero_()
        total, right = 0.0, 0.0
        for _ in range(ACCUMULATE):
            batch = pairs(8, 8 if job.on("answers-cut-off", step) else 24)
            with accelerator.accumulate(model):
                policy = log_probabilities(model, batch)
                with torch.no_grad():
                    if job.on("reference-with-adapters", step):
                        reference = log_probabilities(model, batch)
                    else:
                        with accelerator.unwrap_model(model).disable_adapter():
                            reference = log_probabilities(model, batch)
                better, worse = (policy - reference).chunk(2)
                margin = worse - better if job.on("pairs-swapped", step) else better - worse
                loss = -F.logsigmoid(beta * margin).mean()
                if job.recipe == "squared-later" and step >= 100:
                    loss = (0.1 * margin - 1).square().mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            total += loss.item() / ACCUMULATE
            right += (better > worse).float().mean().item() / ACCUMULATE
        schedule.step()
        job.log(step, total, accuracy=right)
    job.finish(accelerator.unwrap_model(model))


if __name__ == "__main__":
    main()
