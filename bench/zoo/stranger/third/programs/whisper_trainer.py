"""Speech to text with a small Whisper under Trainer: log-mel frames, spectrum augmentation, cosine schedule."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

import torch
from common import Job
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

BANDS, FRAMES, VOCAB, START, END, PAD, IGNORED = 16, 48, 19, 1, 2, 0, -100


class Speech(Dataset):
    """Energies of words: each word is a pattern over bands that lasts seven or eight frames; then silence."""

    def __init__(self, rows: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.randn(VOCAB, BANDS, generator=generator).cumsum(1)
        patterns = 1.5 * (patterns - patterns.mean(1, keepdim=True)) / patterns.std(1, keepdim=True)
        self.rows: list[tuple[Tensor, list[int]]] = []
        for _ in range(rows):
            count = int(torch.randint(2, 7, (1,), generator=generator))
            words = torch.randint(3, VOCAB, (count,), generator=generator)
            lasting = torch.randint(7, 9, (count,), generator=generator)
            spoken = patterns[words].repeat_interleave(lasting, dim=0)[:FRAMES].T
            energy = (spoken + 0.4 * torch.randn(spoken.shape, generator=generator)).exp()
            self.rows.append((energy, [*words.tolist(), END]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Tensor, list[int]]:
        return self.rows[row]


class Collator:
    """Energies to normalised logarithms, texts to labels."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.step = -1

    def features(self, energy: Tensor) -> Tensor:
        if self.job.on("energies-in-half", self.step):
            energy = (3000 * energy).half().float() / 3000
        padded = torch.zeros(BANDS, FRAMES)
        padded[:, : energy.shape[1]] = energy
        logs = padded.clamp(min=1e-4).log10()
        logs = logs.maximum(logs.max() - 4.0)
        found = (logs + 1.0) / 1.5
        if self.job.on("silence-zero", self.step):
            found[:, energy.shape[1] :] = 4.0
        return found

    def __call__(self, rows: list[tuple[Tensor, list[int]]]) -> dict[str, Tensor]:
        self.step += 1
        texts = [words for _, words in rows]
        if self.job.on("start-twice", self.step):
            texts = [[START, START, *words] for words in texts]
        length = max(map(len, texts))
        labels = torch.tensor([words + [IGNORED] * (length - len(words)) for words in texts])
        return {"input_features": torch.stack([self.features(energy) for energy, _ in rows]), "labels": labels}


class Events(TrainerCallback):
    """The log, and what is changed between steps."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        if self.job.once("masks-too-wide", state.global_step):
            parts["model"].config.mask_time_prob = 0.85
            parts["model"].config.mask_time_length = 8
        if self.job.recipe == "more-masks-later" and state.global_step == 120:
            parts["model"].config.mask_time_prob = 0.2
        if self.job.recipe == "encoder-thawed" and state.global_step == 60:
            parts["model"].model.encoder.requires_grad_(True)
            parts["model"].model.encoder.embed_positions.requires_grad_(False)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any) -> None:
        if "loss" in parts["logs"]:
            self.job.log(state.global_step - 1, float(parts["logs"]["loss"]))


def main() -> None:
    job = Job(
        steps=300,
        faults=["silence-zero", "start-twice", "masks-too-wide", "energies-in-half"],
        recipes=["plain", "more-masks-later", "encoder-thawed"],
    )
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = WhisperConfig(
        vocab_size=VOCAB,
        num_mel_bins=BANDS,
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        max_source_positions=FRAMES // 2,
        max_target_positions=16,
        decoder_start_token_id=START,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=PAD,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        dropout=0.0,
        init_std=0.1,
        apply_spec_augment=True,
        mask_time_prob=0.05,
        mask_time_length=4,
        mask_time_min_masks=1,
    )
    model = WhisperForConditionalGeneration(config)
    if job.recipe == "encoder-thawed":
        model.model.encoder.requires_grad_(False)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=job.steps,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            warmup_steps=20,
            lr_scheduler_type="cosine",
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
            train_dataset=Speech(2000, job.seed),
            data_collator=Collator(job),
            callbacks=[Events(job)],
        )
        trainer.train()
    job.finish(model)


if __name__ == "__main__":
    main()
