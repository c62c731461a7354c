"""Hugging Face's Trainer: accumulation with a short last step, warm-up, evaluation, a checkpoint that is resumed."""

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback


class Counting(Dataset):
    def __len__(self):
        return 76

    def __getitem__(self, index):
        tokens = (index + torch.arange(12)) % 40
        return {"input_ids": tokens, "labels": tokens}


set_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=40, n_positions=16, n_embd=32, n_layer=2, n_head=2))
options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "learning_rate": 1e-3, "warmup_steps": 2}
arguments = TrainingArguments(
    "out",
    num_train_epochs=4,
    logging_steps=1,
    eval_strategy="epoch",
    save_strategy="epoch",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    **options,
)
trainer = Trainer(model, arguments, train_dataset=Counting(), eval_dataset=Counting())
trainer.remove_callback(PrinterCallback)
trainer.train()
for entry in trainer.state.log_history:
    for name in ("loss", "eval_loss"):
        if name in entry:
            print(f"{name}es", float(entry[name]).hex())
print("steps", trainer.state.global_step)
