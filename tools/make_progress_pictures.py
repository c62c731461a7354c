"""Draw the pictures of docs/progress.md from two real trainings: a small GPT-2 on this project's own documentation.

python tools/make_progress_pictures.py [FOLDER]

Trains for about a minute on a CPU with the HF Trainer, unless FOLDER holds the two trainings already.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import terminal_picture

from vario.logs.finding import find_history
from vario.reports.progress import summarise_progress
from vario.reports.progress_compare import compare
from vario.reports.progress_compare_plot import save_comparison
from vario.reports.progress_plot import save_progress
from vario.reports.progress_text import render_progress

ROOT = Path(__file__).parents[1]
IMAGES = terminal_picture.IMAGES
LENGTH = 64
RATES = {"steady": 3e-3, "hasty": 3e-2}


def train(folder: Path, rate: float, stop_after: int | None = None) -> None:
    """Train one model; `stop_after` leaves it unfinished, as a running job is."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

    class Stop(TrainerCallback):  # type: ignore[misc]
        """Ends the training half way."""

        def on_step_end(self, args: object, state: object, control: object, **kwargs: object) -> None:
            if state.global_step == stop_after:  # type: ignore[attr-defined]
                control.should_training_stop = True  # type: ignore[attr-defined]

    text = "".join(path.read_text(encoding="utf8") for path in sorted((ROOT / "docs").glob("*.md")))
    letters = sorted(set(text))
    codes = torch.tensor([letters.index(letter) for letter in text])
    pieces = codes[: len(codes) // LENGTH * LENGTH].view(-1, LENGTH)
    rows = [{"input_ids": piece, "labels": piece} for piece in pieces]
    set_seed(0)
    config = GPT2Config(vocab_size=len(letters), n_positions=LENGTH, n_layer=2, n_embd=64, n_head=4, use_cache=False)
    arguments = TrainingArguments(
        str(folder), max_steps=400, per_device_train_batch_size=16, learning_rate=rate, lr_scheduler_type="cosine",
        warmup_steps=30, logging_steps=1, eval_strategy="steps", eval_steps=40, save_steps=80, save_only_model=True,
        report_to=[], use_cpu=True, seed=0, metric_for_best_model="eval_loss",
    )  # fmt: skip
    held_out = rows[::20]
    kept = [row for index, row in enumerate(rows) if index % 20]
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=kept, eval_dataset=held_out, callbacks=[Stop()]).train()


def draw(folder: Path) -> None:
    """Write all pictures."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    steady, hasty = folder / "steady", folder / "hasty"
    history = find_history(steady)
    save_progress(history, IMAGES / "progress.svg")
    save_progress(history, IMAGES / "progress_zh.svg", "zh")
    both = [history, find_history(hasty)]
    save_comparison(compare([steady, hasty], both), both, IMAGES / "progress_compare.svg")
    shown = find_history(steady)
    summary = summarise_progress(shown, now=(shown.written or 0) + 12)
    terminal_picture.save("progress_summary", "vario progress steady", render_progress(shown, summary, "en"))


def main() -> None:
    """Train where nothing was trained yet, then draw."""
    with tempfile.TemporaryDirectory() as made:
        # From inside, so that the pictures show names and no place on one machine.
        os.chdir(sys.argv[1] if len(sys.argv) > 1 else made)
        for name, rate in RATES.items():
            if not Path(name).is_dir():
                train(Path(name), rate, stop_after=320 if name == "steady" else None)
        draw(Path())
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
