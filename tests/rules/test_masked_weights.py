"""Weights that the loop itself writes in part, such as adapters that give up ranks, through the front door."""

import torch

import vario


class Ranks(torch.nn.Module):
    """A product of matrices with a weight for each rank, as in adapters that choose their rank."""

    def __init__(self):
        super().__init__()
        self.down, self.up = (torch.nn.Linear(*shape, bias=False) for shape in ((16, 6), (6, 16)))
        self.ranks = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(6, 1)) for _ in range(4))

    def forward(self, x):
        for rank in self.ranks:
            x = x + self.up(self.down(x) * rank.squeeze(1))
        return x


def test_a_mask_that_the_loop_lays_over_small_weights_is_no_broken_memory(tmp_path):
    torch.manual_seed(0)
    model = Ranks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True) as monitor:
        for step in range(120):
            x = torch.randn(32, 16)
            optimizer.zero_grad()
            (model(x) - x.roll(1, 1)).square().mean().backward()
            optimizer.step()
            if step >= 60 and step % 10 == 0:
                with torch.no_grad():
                    rank = model.ranks[step // 10 % 4]
                    rank.masked_fill_(rank.abs() < rank.abs().median(), 0.0)
    alerts = [alert for alert in vario.open_run(monitor.path).alerts if alert.rule == "unexplained_change"]
    assert alerts
    assert all(alert.severity != "page" for alert in alerts)


def test_one_element_of_many_is_still_a_page(tmp_path):
    torch.manual_seed(0)
    model = Ranks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with vario.watch(model, optimizer, directory=tmp_path, name="run", strict=True, overhead="off", every=1) as monitor:
        for step in range(60):
            x = torch.randn(32, 16)
            optimizer.zero_grad()
            (model(x) - x.roll(1, 1)).square().mean().backward()
            optimizer.step()
            if step == 40:
                with torch.no_grad():
                    model.down.weight[2, 3] = 50.0
    alerts = [alert for alert in vario.open_run(monitor.path).alerts if alert.rule == "unexplained_change"]
    assert [(alert.target, alert.severity) for alert in alerts] == [("down.weight", "page")]
