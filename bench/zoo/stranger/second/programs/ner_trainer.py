"""Named-entity tags with a small DistilBERT under Trainer: weighted loss, padding, linear schedule."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.nn.functional as F
from common import Job
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForTokenClassification,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

VOCAB, WORDS, PAD, UNKNOWN, TITLES, TAGS, IGNORED = 160, 14, 0, 1, 12, 5, -100


class Sentences(Dataset):
    """Words of one or two pieces. A title word (ids 4 to 15) makes the next word an entity of the title's kind."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.rows: list[tuple[list[int], list[int]]] = []
        for _ in range(rows):
            count = int(torch.randint(8, WORDS + 1, (1,), generator=generator))
            ids = torch.randint(16, VOCAB, (count,), generator=generator).tolist()
            is_title = (torch.rand(count, generator=generator) < 0.25).tolist()
            kind = 0
            pieces, tags = [], []
            for word, title in zip(ids, is_title, strict=True):
                word = 4 + word % TITLES if title else word
                pieces.append(word)
                slip = float(torch.rand(1, generator=generator)) < 0.08
                tags.append(word % TAGS if slip else kind)
                if not title and word % 3 == 0:
                    pieces.append(16 + (word * 7) % (VOCAB - 16))
                    tags.append(IGNORED)
                kind = 1 + (word - 4) % (TAGS - 1) if title else 0
            self.rows.append((pieces, tags))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[list[int], list[int]]:
        return self.rows[row]


class Collator:
    """Pads pieces and tags."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.step = -1

    def __call__(self, rows: list[tuple[list[int], list[int]]]) -> dict[str, Tensor]:
        self.step += 1
        if self.job.on("labels-not-aligned", self.step):
            rows = [(pieces, [tag for tag in tags if tag != IGNORED]) for pieces, tags in rows]
        length = max(len(pieces) for pieces, _ in rows)
        ids = torch.tensor([pieces + [PAD] * (length - len(pieces)) for pieces, _ in rows])
        labels = torch.tensor([tags + [IGNORED] * (length - len(tags)) for _, tags in rows])
        mask = (ids != PAD).long()
        if self.job.on("unknown-words", self.step):
            ids = torch.where((ids % 5 < 3) & (ids != PAD), UNKNOWN, ids)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class WeightedTrainer(Trainer):
    """Rare tags weigh more."""

    def __init__(self, *args: Any, job: Job, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.job = job

    def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **kwargs: Any) -> Tensor:
        labels = inputs.pop("labels")
        logits = model(**inputs).logits
        weights = torch.tensor([0.5, 1.5, 1.5, 1.5, 1.5])
        if self.job.on("class-weights-inverted", self.state.global_step):
            weights = torch.tensor([20.0, 0.05, 0.05, 0.05, 0.05])
        if self.job.recipe == "focal-loss" and self.state.global_step >= 100:
            each = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
            return ((1 - (-each).exp()) * each).sum() / (labels != IGNORED).sum()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), weight=weights, ignore_index=IGNORED)


class Events(TrainerCallback):
    """The log, and one thing that happens after steps."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if self.job.on("schedule-of-eight-processes", state.global_step - 1):
            for _ in range(7):
                parts["lr_scheduler"].step()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if "loss" in parts["logs"]:
            self.job.log(state.global_step - 1, float(parts["logs"]["loss"]))


def main() -> None:
    job = Job(
        steps=260,
        faults=["labels-not-aligned", "schedule-of-eight-processes", "class-weights-inverted", "unknown-words"],
        at_start=["encoder-frozen"],
        recipes=["plain", "neftune", "focal-loss"],
    )
    config = DistilBertConfig(
        vocab_size=VOCAB,
        max_position_embeddings=40,
        dim=48,
        n_layers=2,
        n_heads=4,
        hidden_dim=128,
        dropout=0.0,
        attention_dropout=0.0,
        initializer_range=0.1,
    )
    config.num_labels = TAGS
    model = DistilBertForTokenClassification(config)
    if job.fault == "encoder-frozen":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("classifier" in name)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=job.steps,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            warmup_steps=20,
            weight_decay=0.01,
            logging_steps=1,
            neftune_noise_alpha=3.0 if job.recipe == "neftune" else None,
            save_strategy="no",
            report_to=[],
            remove_unused_columns=False,
            use_cpu=True,
            disable_tqdm=True,
            log_level="error",
            seed=job.seed,
        )
        trainer = WeightedTrainer(
            model=model,
            args=arguments,
            train_dataset=Sentences(3000, job.seed),
            data_collator=Collator(job),
            callbacks=[Events(job)],
            job=job,
        )
        trainer.train()
    job.finish(model)


if __name__ == "__main__":
    main()
