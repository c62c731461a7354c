"""A small GPT-2 of transformers under its Trainer: accumulation over two batches, cosine schedule, padding."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from common import Job, topic_text
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

VOCAB, LENGTH, PAD, ACCUMULATE = 96, 40, 0, 2


class Sequences(Dataset):
    """Sequences of several lengths."""

    def __init__(self, rows: int, seed: int) -> None:
        self.tokens = topic_text(rows, LENGTH, VOCAB, seed)
        self.lengths = torch.randint(24, LENGTH + 1, (rows,), generator=torch.Generator().manual_seed(seed)).tolist()

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, row: int) -> Tensor:
        return self.tokens[row, : self.lengths[row]]


class Collator:
    """Pads a batch and makes its labels."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.batches = 0

    def __call__(self, rows: list[Tensor]) -> dict[str, Tensor]:
        step = self.batches // ACCUMULATE
        self.batches += 1
        if self.job.on("cut-short", step):
            rows = [row[:8] for row in rows]
        tokens = torch.full((len(rows), LENGTH), PAD)
        mask = torch.zeros(len(rows), LENGTH, dtype=torch.long)
        for number, row in enumerate(rows):
            tokens[number, : len(row)] = row
            mask[number, : len(row)] = 1
        labels = tokens.masked_fill(mask == 0, -100)
        if self.job.on("labels-shifted-twice", step):
            labels = torch.cat([labels[:, 1:], torch.full((len(rows), 1), -100)], dim=1)
        if self.job.on("pad-in-loss", step):
            labels = tokens.clone()
        return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


class Events(TrainerCallback):
    """What happens between steps."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        step, model, optimizer = state.global_step, parts["model"], parts["optimizer"]
        if self.job.once("embedding-frozen", step):
            model.transformer.wte.weight.requires_grad_(False)
        if self.job.once("dropout-high", step):
            for module in model.modules():
                if isinstance(module, torch.nn.Dropout):
                    module.p = 0.6
        if self.job.once("betas-wrong", step):
            for group in optimizer.param_groups:
                group["betas"] = (0.0, 0.5)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        logs = parts["logs"]
        if "loss" in logs:
            self.job.log(state.global_step - 1, float(logs["loss"]), norm=float(logs["grad_norm"]))


def main() -> None:
    job = Job(
        steps=250,
        faults=["cut-short", "labels-shifted-twice", "pad-in-loss", "embedding-frozen", "dropout-high", "betas-wrong"],
    )
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.05,
        embd_pdrop=0.05,
        attn_pdrop=0.05,
        bos_token_id=1,
        eos_token_id=1,
        tie_word_embeddings=False,
    )
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=job.steps,
            per_device_train_batch_size=12,
            gradient_accumulation_steps=ACCUMULATE,
            learning_rate=4e-3,
            lr_scheduler_type="cosine",
            warmup_steps=20,
            weight_decay=0.01,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            log_level="error",
            seed=job.seed,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Sequences(7000, job.seed),
            data_collator=Collator(job),
            callbacks=[Events(job)],
        )
        trainer.train()
    job.finish(model)


if __name__ == "__main__":
    main()
