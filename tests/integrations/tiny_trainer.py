"""A real Trainer on a tiny GPT-2: shared by the tests of MonitorCallback."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

VOCABULARY = 32


def tiny_gpt(dropout=0.1):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=16,
        n_embd=16,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def sentences(num=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (num, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in tokens]


def made(folder, callbacks, model=None, trainer=Trainer, **arguments):
    settings = {
        "output_dir": str(folder / "output"),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "max_grad_norm": 0.1,
        "dataloader_pin_memory": False,
        "seed": 1,
    }
    return trainer(
        model=model or tiny_gpt(),
        args=TrainingArguments(**{**settings, **arguments}),
        train_dataset=sentences(),
        eval_dataset=sentences(8, seed=1),
        callbacks=callbacks,
    )


def history(trainer, key):
    """{step: value} of what the Trainer itself logged."""
    return {row["step"]: row[key] for row in trainer.state.log_history if key in row}
