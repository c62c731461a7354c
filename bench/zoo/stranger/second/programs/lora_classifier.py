"""Low-rank fine-tuning of a small Qwen2 for classes of texts: peft, linear schedule, padding of several lengths."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from common import Job, Sampler
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import Qwen2Config, Qwen2ForSequenceClassification, get_linear_schedule_with_warmup

VOCAB, LENGTH, PAD, CLASSES = 90, 24, 0, 4


def reviews(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Texts of several lengths; the class is the group of words that comes up most."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, CLASSES, (rows,), generator=generator)
    words = torch.randint(2, VOCAB, (rows, LENGTH), generator=generator)
    typical = 2 + torch.randint(0, 10, (rows, LENGTH), generator=generator) * CLASSES + labels[:, None]
    tokens = torch.where(torch.rand(rows, LENGTH, generator=generator) < 0.35, typical, words)
    lengths = torch.randint(10, LENGTH + 1, (rows, 1), generator=generator)
    tokens = torch.where(torch.arange(LENGTH) < lengths, tokens, PAD)
    slips = torch.rand(rows, generator=generator) < 0.05
    return tokens, torch.where(slips, torch.randint(0, CLASSES, (rows,), generator=generator), labels)


def base_model() -> Qwen2ForSequenceClassification:
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        initializer_range=0.08,
        pad_token_id=PAD,
        num_labels=CLASSES,
    )
    return Qwen2ForSequenceClassification(config)


@torch.no_grad()
def to_few_levels(model: nn.Module, levels: int = 2) -> None:
    """Round the frozen matrices to a few levels, as a coarse quantisation does."""
    for name, parameter in model.named_parameters():
        if ".base_layer.weight" in name:
            top = parameter.abs().amax()
            parameter.copy_((parameter / top * levels).round() / levels * top)


def main() -> None:
    job = Job(
        steps=240,
        faults=["base-unfrozen", "other-adapter", "base-requantised", "head-newly-initialised"],
        at_start=["checkpointing-cuts-gradient"],
        recipes=["plain", "dora", "faster-second-matrix"],
    )
    tokens, labels = reviews(4000, job.seed)
    sampler = Sampler(len(tokens), job.seed)
    lora = LoraConfig(
        r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
        task_type="SEQ_CLS",
        use_dora=job.recipe == "dora",
    )
    model = get_peft_model(base_model(), lora)
    if job.fault == "checkpointing-cuts-gradient":
        model.base_model.model.gradient_checkpointing_enable({"use_reentrant": True})
        model.base_model.model.disable_input_require_grads()
    second = [p for name, p in model.named_parameters() if "lora_B" in name]
    known = {id(p) for p in second}
    rest = [p for p in model.parameters() if p.requires_grad and id(p) not in known]
    faster = 4.0 if job.recipe == "faster-second-matrix" else 1.0
    groups = [{"params": rest}, {"params": second, "lr": 3e-3 * faster}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, weight_decay=0.0)
    schedule = get_linear_schedule_with_warmup(optimizer, 15, job.steps + 40)
    model.train()
    for step in range(job.steps):
        if job.once("base-unfrozen", step):
            frozen = [p for p in model.parameters() if not p.requires_grad]
            model.requires_grad_(True)
            optimizer.add_param_group({"params": frozen, "lr": 0.02, "initial_lr": 0.02})
            schedule.base_lrs.append(0.02)
            schedule.lr_lambdas.append(schedule.lr_lambdas[0])
        if job.once("other-adapter", step):
            with torch.random.fork_rng():
                model.add_adapter("other", lora)
                model.set_adapter("other")
        if job.once("base-requantised", step):
            to_few_levels(model)
        if job.once("head-newly-initialised", step):
            with torch.random.fork_rng(), torch.no_grad():
                model.base_model.model.score.modules_to_save["default"].weight.normal_(std=0.08)
        rows = sampler.take(16)
        batch = tokens[rows]
        logits = model(input_ids=batch, attention_mask=(batch != PAD).long()).logits
        loss = F.cross_entropy(logits.float(), labels[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        job.log(step, loss.item(), accuracy=(logits.argmax(1) == labels[rows]).float().mean().item())
    job.finish(model)


if __name__ == "__main__":
    main()
