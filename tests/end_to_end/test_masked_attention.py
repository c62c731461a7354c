"""A causal mask of -inf, as torch's own layers take it: nobody's fault, and no veil over one."""

import torch
from torch import nn

import vario
from vario.runs.findings.diagnosis import diagnose

BAD_STEP = 12


class Block(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU())

    def forward(self, x, mask):
        x = x + self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(x)


def train(path, bad_step=None):
    torch.manual_seed(0)
    blocks, head = nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 1)
    model = nn.ModuleDict({"blocks": blocks, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mask = torch.triu(torch.full((8, 8), -torch.inf), diagonal=1)
    with vario.watch(model, optimizer, every=1, directory=str(path), name="masked") as monitor:
        for step in range(20):
            if step == bad_step:
                with torch.no_grad():
                    blocks[1].mlp[0].weight[0, 0] = torch.nan
            x = torch.randn(4, 8, 16)
            for block in blocks:
                x = block(x, mask)
            loss = head(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    return vario.open_run(path / "masked")


def test_a_causal_mask_is_no_fault(tmp_path):
    run = train(tmp_path)
    assert run.series("blocks.0.attn:input.attn_mask", "activation", "infs").values[0] == 28
    assert not run.alerts
    assert vario.first_bad(run) is None


def test_a_nan_is_found_where_it_is_beside_a_mask(tmp_path):
    run = train(tmp_path, BAD_STEP)
    onset = vario.first_bad(run)
    assert onset.step == BAD_STEP
    first = diagnose(run).first
    assert first.lead.step == BAD_STEP
    assert "blocks.1.mlp.0" in (first.place or first.lead.target)


def test_inputs_of_masked_attention_count_as_finite(tmp_path):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    mask = torch.triu(torch.full((4, 4), -torch.inf), diagonal=1)
    with torch.no_grad():
        attention.out_proj.bias[0] = torch.nan
    watched = vario.watch(attention, quantities=["activation"], every=1, directory=str(tmp_path), name="one")
    x = torch.randn(2, 4, 8)
    attention(x, x, x, attn_mask=mask)
    watched.step()
    watched.close()
    onset = vario.first_bad(vario.open_run(tmp_path / "one"))
    assert onset.target.startswith("root:output")
    assert onset.inputs_were_finite
