"""Rows that a policy makes, ever more alike, are no data loader that repeats itself, through the front door."""

import torch

import vario


def train(tmp_path, rows_of):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(160):
            rows = rows_of(step).float()
            optimizer.zero_grad()
            (model(rows).squeeze(1) - rows.sum(1)).square().mean().backward()
            optimizer.step()
    return [alert.rule for alert in vario.open_run(monitor.path).alerts if alert.rule.startswith("data_")]


def test_a_policy_that_becomes_sure_of_its_answers_is_no_stuck_loader(tmp_path):
    def answers(step):
        is_sure = torch.rand(48, 6) < step / 150
        return torch.where(is_sure, torch.arange(6), torch.randint(0, 8, (48, 6)))

    assert not train(tmp_path, answers)


def test_a_loader_that_repeats_its_batch_still_is_told(tmp_path):
    kept = torch.randn(48, 6)
    assert "data_repeat" in train(tmp_path, lambda step: kept if step >= 80 else torch.randn(48, 6))


def test_a_worker_that_is_stuck_still_is_told(tmp_path):
    kept = torch.randn(6, 6)

    def batch(step):
        return torch.cat([kept, torch.randn(42, 6)]) if step >= 80 else torch.randn(48, 6)

    assert train(tmp_path, batch) == ["data_stuck_rows"]
