"""The load of every expert of every router, in one event file."""

import numpy as np
import torch
from monitored import Board, content
from torch import nn

import vario
from vario.compat.mindformers import load_yaml

EXPERTS = 4


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(EXPERTS))
        self.top_k = 2
        self.chosen = []

    def forward(self, rows):
        logits = self.gate(rows)
        weights, chosen = logits.softmax(-1).topk(self.top_k)
        self.chosen.append(torch.bincount(chosen.flatten(), minlength=EXPERTS).numpy() / chosen.numel())
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            out = out + expert(rows) * (weights * (chosen == number)).sum(-1, keepdim=True)
        return rows + out


def test_every_expert_of_every_router_in_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = nn.Sequential(Mixture(), Mixture())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = content(tmp_path, {"monitor_on": False}, {"log_expert_load_to_tensorboard": True})
    found["callbacks"].append({"type": "TopkBiasBalanceCallback"})
    with vario.watch(model, optimizer, config=load_yaml(found, name="run")):
        for _ in range(3):
            for _ in range(2):
                (model(torch.randn(8, 6)).square().mean() / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
    board = Board(tmp_path)
    assert len(list((tmp_path / "board").rglob("events.*"))) == 1
    tags = {tag for tag in board.tags if tag.startswith("expert_load")}
    assert tags == {f"expert_load/{layer}.gate/ep_{expert}" for layer in (0, 1) for expert in range(EXPERTS)}
    run = vario.open_run(tmp_path / "vario_runs" / "run")
    for layer in (0, 1):
        shares = np.array(model[layer].chosen).reshape(3, 2, EXPERTS).mean(1)
        for expert in range(EXPERTS):
            curve = board.curve(f"expert_load/{layer}.gate/ep_{expert}")
            assert list(curve) == [1, 2, 3]
            np.testing.assert_allclose(list(curve.values()), shares[:, expert], rtol=1e-6)
            stored = run.series(f"{layer}.gate:ep_{expert}", "expert", "mean").values
            np.testing.assert_allclose(stored, shares[:, expert], rtol=1e-6)


def test_without_the_callback_or_the_switch_there_is_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, (switch, types) in enumerate([(False, ["TopkBiasBalanceCallback"]), (True, [])]):
        folder = tmp_path / str(number)
        found = content(folder, board={"log_expert_load_to_tensorboard": switch})
        found["callbacks"] += [{"type": kind} for kind in types]
        model = nn.Sequential(Mixture())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with vario.watch(model, optimizer, config=load_yaml(found)):
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
        assert not any(tag.startswith("expert_load") for tag in Board(folder).tags)
