"""x-transformers: a decoder in its autoregressive wrapper, with accumulation, and sampling in between."""

import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

torch.manual_seed(0)
model = AutoregressiveWrapper(
    TransformerWrapper(
        num_tokens=40, max_seq_len=16, attn_layers=Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True)
    )
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    model.train()
    total = 0.0
    for _ in range(2):
        tokens = (torch.randint(0, 40, (8, 1)) + torch.arange(16)) % 40
        loss = model(tokens) / 2
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    print("losses", total.hex())
    if step % 10 == 9:
        model.eval()
        print("sample", model.generate(tokens[:1, :2], 5, temperature=0.0).tolist())
print("steps", 30)
