"""`vario plan`, as a user types it, and against what a run then wrote."""

import json

import pytest
import torch

import vario
from vario.cli import main

BUILDERS = """
import torch

def build(batch, seq):
    model = torch.nn.Sequential(torch.nn.Linear(128, 64), torch.nn.GELU(), torch.nn.Linear(64, 10))
    return model, (torch.empty(batch, 128),)

def choosy():
    class Choosy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)
        def forward(self, x):
            raise RuntimeError("only on Sundays")
    return Choosy(), (torch.empty(4, 4),)
"""


@pytest.fixture
def builders(tmp_path, monkeypatch):
    (tmp_path / "plan_builders.py").write_text(BUILDERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def planned(capsys, *words):
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_predicts_the_rows_of_a_run(builders, tmp_path, capsys):
    import plan_builders

    found = planned(capsys, "plan_builders:build", "--steps", "101")
    model, _ = plan_builders.build(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    with vario.watch(
        model, optimizer, directory=tmp_path / "runs", name="run", overhead="off", machine="off"
    ) as monitor:
        for _ in range(101):
            loss = model(torch.randn(8, 128)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run = vario.open_run(monitor.path)
    rows = {one["quantity"]: one for one in found["leading"]}
    for quantity in ("gradient", "weight", "moment", "activation", "activation_gradient"):
        assert rows[quantity]["rows"] == len(run.targets(quantity)), quantity
        assert rows[quantity]["rows_per_step"] == pytest.approx(run.to_arrow(quantity).num_rows / 101, rel=0.1)
    assert rows["update"]["rows_per_step"] == pytest.approx(run.to_arrow("update").num_rows / 101, rel=0.1)
    assert rows["scalar"]["rows_per_step"] >= run.to_arrow("scalar").num_rows / 101
    assert found["notes"] == []


def test_a_day_is_the_whole_run_by_its_length(builders, capsys):
    found = planned(capsys, "plan_builders:build", "--steps", "1000000", "--ranks", "4", "--step-seconds", "0.5")
    whole = found["volume"]["all"]["with_tiers"]
    assert whole["bytes_a_day"] == pytest.approx(whole["bytes"] / (1_000_000 * 0.5) * 86_400)
    leading, other = (found["volume"][name]["with_tiers"]["bytes"] for name in ("leading", "other"))
    assert whole["bytes"] == pytest.approx(leading + 3 * other)
    assert other < leading
    assert found["volume"]["leading"]["every_row"]["bytes"] >= leading


def test_tiers_bound_a_long_run(builders, capsys):
    words = ("plan_builders:build", "--retention", "bytes=10MB")
    short, long = (planned(capsys, *words, "--steps", steps)["volume"]["all"] for steps in ("1000000", "16000000"))
    assert long["every_row"]["bytes"] == pytest.approx(16 * short["every_row"]["bytes"], rel=0.1)
    assert long["with_tiers"]["bytes"] < 0.6 * long["every_row"]["bytes"]


def test_a_model_that_cannot_be_run_is_estimated_and_it_says_so(builders, capsys):
    assert main(["plan", "plan_builders:choosy", "--steps", "1000"]) == 0
    told = capsys.readouterr().out
    assert "Activations are estimated from the number of modules" in told
    assert "only on Sundays" in told
    assert "add --step-seconds" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan_builders:build", "--steps", "0"], "steps: expected a whole number above 0"),
        (["plan_builders:build", "--steps", "5", "--step-seconds", "0"], "step_seconds: expected a number above 0"),
        (["plan_builders:bild", "--steps", "5"], "Did you mean 'build'?"),
        (["plan_builders:build"], "--steps"),
    ],
)
def test_wrong_arguments_are_named(builders, capsys, words, message):
    assert main(["plan", *words]) == 2
    assert message in capsys.readouterr().err
