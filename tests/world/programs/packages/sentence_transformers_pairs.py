"""sentence-transformers: its trainer on pairs of sentences, with a BERT and a vocabulary made on the spot."""

from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, set_seed
from transformers.trainer_callback import PrinterCallback

set_seed(0)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"word{number}" for number in range(40))]
plain = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=16, **names).save_pretrained("bert")
config = BertConfig(
    vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
)
BertModel(config).save_pretrained("bert")
body = Transformer("bert")
model = SentenceTransformer(modules=[body, Pooling(32)], device="cpu")
pairs = [(f"word{n % 40} word{(n + 1) % 40} word{(n + 2) % 40}", f"word{(n + 3) % 40} word{n % 40}") for n in range(96)]
rows = Dataset.from_dict({"anchor": [left for left, _ in pairs], "positive": [right for _, right in pairs]})
arguments = SentenceTransformerTrainingArguments(
    "out",
    num_train_epochs=3,
    per_device_train_batch_size=8,
    learning_rate=5e-4,
    logging_steps=1,
    save_strategy="no",
    report_to=[],
    disable_tqdm=True,
    use_cpu=True,
)
trainer = SentenceTransformerTrainer(model, arguments, rows, loss=MultipleNegativesRankingLoss(model))
trainer.remove_callback(PrinterCallback)
trainer.train()
for entry in trainer.state.log_history:
    if "loss" in entry:
        print("losses", float(entry["loss"]).hex())
print("steps", trainer.state.global_step)
