"""TRL: direct preference optimization, with a reference model beside the one that is trained."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed
from transformers.trainer_callback import PrinterCallback
from trl import DPOConfig, DPOTrainer

set_seed(0)
words = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{number}" for number in range(40))]
plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, padding_side="left", **names)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
)
model.save_pretrained("tiny")  # the reference model is loaded from there
rows = Dataset.from_dict(
    {
        "prompt": [f"w{n % 40} w{(n + 1) % 40}" for n in range(80)],
        "chosen": [f" w{(n + 2) % 40} w{(n + 3) % 40}" for n in range(80)],
        "rejected": [f" w{(7 * n) % 40} w{(5 * n) % 40}" for n in range(80)],
    }
)
arguments = DPOConfig(
    "out",
    max_length=16,
    max_steps=15,
    per_device_train_batch_size=4,
    learning_rate=5e-4,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
    bf16=False,
    gradient_checkpointing=False,
)
trainer = DPOTrainer("tiny", args=arguments, train_dataset=rows, processing_class=tokenizer)
trainer.remove_callback(PrinterCallback)
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print("losses", float(entry["loss"]).hex())
print("steps", trainer.state.global_step)
