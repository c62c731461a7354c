"""Masked words with a small RoBERTa under Trainer: Adafactor, two batches for each update, masks by the collator."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from common import Job, topic_text
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.optimization import Adafactor, get_polynomial_decay_schedule_with_warmup

WORDS, LENGTH, START, PAD, END, MASK, IGNORED = 50, 22, 0, 1, 2, 3, -100
ACCUMULATE = 2


class Texts(Dataset):
    """Texts of several lengths between a start and an end."""

    def __init__(self, rows: int, seed: int) -> None:
        texts = topic_text(rows, LENGTH, WORDS, seed, topics=1)
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(14, LENGTH + 1, (rows,), generator=generator).tolist()
        self.rows = [[START, *text[:length], END] for text, length in zip(texts.tolist(), lengths, strict=True)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> list[int]:
        return self.rows[row]


class Collator:
    """Pads, and hides some words: of eight in ten the mask, of one another word, of one the word itself."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.calls = -1

    def __call__(self, rows: list[list[int]]) -> dict[str, Tensor]:
        self.calls += 1
        step = self.calls // ACCUMULATE
        ids = torch.tensor([row + [PAD] * (LENGTH + 2 - len(row)) for row in rows])
        labels = ids.clone()
        share = 0.15
        if self.job.recipe == "masks-fewer-later":
            share = 0.4 if step < 80 else 0.25 if step < 160 else 0.15
        chosen = (torch.rand(ids.shape) < share) & (ids > MASK)
        kind = torch.rand(ids.shape)
        hidden = torch.where(chosen & (kind < 0.8), PAD if self.job.on("mask-is-padding", step) else MASK, ids)
        others = torch.randint(MASK + 1, WORDS, ids.shape)
        hidden = torch.where(chosen & (kind > 0.9), others, hidden)
        if self.job.fault == "nothing-masked":
            hidden = ids
        labels[~chosen] = IGNORED
        if self.job.on("labels-everywhere", step):
            labels = torch.where(ids > MASK, ids, IGNORED)
        return {"input_ids": hidden, "attention_mask": (hidden != PAD).long(), "labels": labels}


class Events(TrainerCallback):
    """The log, and what is changed between steps."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if self.job.once("scaled-by-weights", state.global_step):
            for group in parts["optimizer"].param_groups:
                group["scale_parameter"] = True

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if "loss" in parts["logs"]:
            self.job.log(state.global_step - 1, float(parts["logs"]["loss"]))


def main() -> None:
    job = Job(
        steps=300,
        faults=["labels-everywhere", "mask-is-padding", "scaled-by-weights"],
        at_start=["nothing-masked"],
        recipes=["plain", "masks-fewer-later"],
    )
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = RobertaConfig(
        vocab_size=WORDS,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=LENGTH + 6,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.08,
        bos_token_id=START,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model = RobertaForMaskedLM(config)
    optimizer = Adafactor(
        model.parameters(), lr=5e-3, scale_parameter=False, relative_step=False, warmup_init=False, beta1=0.9
    )
    schedule = get_polynomial_decay_schedule_with_warmup(optimizer, 20, job.steps, lr_end=3e-4, power=0.7)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=job.steps,
            per_device_train_batch_size=16,
            gradient_accumulation_steps=ACCUMULATE,
            max_grad_norm=0.0,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            use_cpu=True,
            disable_tqdm=True,
            log_level="error",
            seed=job.seed,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Texts(4000, job.seed),
            data_collator=Collator(job),
            optimizers=(optimizer, schedule),
            callbacks=[Events(job)],
        )
        trainer.model_accepts_loss_kwargs = False
        trainer.train()
    job.finish(model)


if __name__ == "__main__":
    main()
