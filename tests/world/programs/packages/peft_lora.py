"""peft: LoRA on a small Llama, saved and merged at the end."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

set_seed(0)
base = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
    )
)
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
for _ in range(30):
    tokens = (torch.randint(0, 48, (8, 1)) + torch.arange(12)) % 48
    loss = model(input_ids=tokens, labels=tokens).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
model.save_pretrained("adapter")
merged = model.merge_and_unload()
with torch.no_grad():
    print("validation", merged(input_ids=tokens, labels=tokens).loss.item().hex())
print("steps", 30)
