"""Watch Hugging Face's Trainer with a MonitorCallback: a tiny GPT-2 learns to count, from random weights.

python examples/hf_trainer.py && vario report
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import vario


def counting(num_rows: int, length: int = 16) -> list[dict[str, torch.Tensor]]:
    """Return rows that count up from a random start, modulo 50."""
    starts = torch.randint(50, (num_rows, 1))
    return [{"input_ids": row, "labels": row} for row in (starts + torch.arange(length)) % 50]


def main() -> None:
    torch.manual_seed(0)
    shape = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    watching = vario.MonitorCallback(check_gradients=True, gradient_check_steps=10, every=1)
    trainer = Trainer(
        model=GPT2LMHeadModel(shape),
        args=TrainingArguments(
            output_dir="output",
            max_steps=30,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=5,
            eval_strategy="steps",
            eval_steps=10,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        ),
        train_dataset=counting(512),
        eval_dataset=counting(32),
        callbacks=[watching],
    )
    trainer.train()

    run = vario.open_run(watching.path)
    losses = run.series("eval_loss", "scalar")
    by_step = dict(zip(losses.steps.tolist(), losses.values.round(2).tolist(), strict=True))
    print(f"{run.path}: evaluation loss by step: {by_step}")
    print("first NaN or Inf:", vario.first_bad(run))


if __name__ == "__main__":
    main()
