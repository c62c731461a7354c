"""Recurrent layers as cuDNN runs them, and upper bounds where shapes depend on values, beside what an H200 measured."""

import io
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from vario.analysis.memory import estimate_model_memory, predict_memory
from vario.analysis.memory_text import prediction_panel
from vario.cli import main
from vario.core.errors import ModelError

BENCH = Path(__file__).parents[2] / "bench"
MEASURED = {
    row["case"]: row for row in map(json.loads, (BENCH / "memory_recurrent_h200.jsonl").read_text().splitlines())
}


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import memory_recurrent

    yield memory_recurrent
    sys.modules.pop("memory_recurrent", None)


@pytest.mark.parametrize(
    "name",
    ["lstm-lm", "bilstm3-mixed", "gru2-batch-first", "bigru-2048-bf16", "lstm-big", "lstm-nobias", "seq2seq-gru"],
)
def test_recurrent_layers_take_what_an_h200_measured(cases, name):
    found, truth = cases.predict(name), MEASURED[name]
    assert not found["is_upper_bound"]
    assert found["allocated_mib"] == pytest.approx(truth["allocated_mib"], rel=0.005)
    assert found["reserved_mib"] == pytest.approx(truth["reserved_mib"], rel=0.02)


@pytest.mark.parametrize("name", ["lstm-cell-mixed", "gru-cell", "rnn-cell"])
def test_single_cells_take_what_an_h200_measured(cases, name):
    found, truth = cases.predict(name), MEASURED[name]
    assert found["allocated_mib"] == pytest.approx(truth["allocated_mib"], rel=0.005)


@pytest.mark.parametrize("name", ["bilstm-packed", "masked-lm-select-15", "unique-embedding", "wav2vec2-tiny"])
def test_where_shapes_depend_on_values_no_step_takes_more_than_is_predicted(cases, name):
    found, truth = cases.predict(name), MEASURED[name]
    assert found["is_upper_bound"]
    assert found["allocated_mib"] >= truth["allocated_mib"] * 0.9999


@pytest.mark.parametrize("name", ["bilstm-packed-full", "masked-lm-select-all"])
def test_a_bound_is_reached_where_values_choose_everything(cases, name):
    found, truth = cases.predict(name), MEASURED[name]
    assert found["allocated_mib"] == pytest.approx(truth["allocated_mib"], rel=0.001)


class Picks(nn.Module):
    """Works on the rows that are chosen."""

    def __init__(self, choose):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.choose = choose

    def forward(self, x):
        return self.inner(self.choose(x))


CHOICES = {
    "masks": lambda x: x[x.sum(-1) > 0],
    "masks of elements": lambda x: x.masked_select(x > 0)[:4],
    "places": lambda x: x[(x.sum(-1) > 0).nonzero().squeeze(1)],
    "places by where": lambda x: x[torch.where(x.sum(-1) > 0)],
    "unique rows": lambda x: torch.unique(x, dim=0),
    "written": lambda x: x.clone().index_put((x.sum(-1) > 0,), torch.zeros(4)),
}


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES.keys())
def test_choices_by_value_are_bounded_and_named(choose):
    found = predict_memory(Picks(choose), (torch.randn(8, 4),), loss=lambda outputs, _: outputs.sum())
    assert found.is_upper_bound
    assert found.bounds
    console = Console(record=True, width=110, file=io.StringIO())
    console.print(prediction_panel(found, "Picks"))
    text = " ".join(console.export_text().split())
    assert "at most" in text
    assert "This is an upper bound: some sizes depend on values" in text
    assert found.bounds[0].split()[0] in text


def test_what_nothing_bounds_is_refused():
    repeats = Picks(lambda x: torch.repeat_interleave(x, x.sum(-1).long(), dim=0))
    with pytest.raises(ModelError, match="Picks cannot be simulated: its code depends on values"):
        predict_memory(repeats, (torch.randn(8, 4),), loss=lambda outputs, _: outputs.sum())


def test_an_ordinary_model_is_no_bound():
    found = predict_memory(nn.Linear(4, 4), (torch.randn(8, 4),), loss=lambda outputs, _: outputs.sum())
    assert not found.is_upper_bound
    assert found.bounds == []


def test_the_command_says_that_it_is_a_bound(tmp_path, monkeypatch, capsys):
    (tmp_path / "picking.py").write_text(
        "import torch\n"
        "class Picks(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.inner = torch.nn.Linear(4, 4)\n"
        "    def forward(self, x):\n        return self.inner(x[x.sum(-1) > 0]).sum()\n"
        "def build(batch):\n    return Picks(), (torch.randn(batch, 4),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["memory", "--model", "picking:build", "--batch", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_upper_bound"] is True
    assert found["bounds"] == ["index in the model itself"]
    assert main(["memory", "--model", "picking:build", "--batch", "8"]) == 0
    assert "at most" in capsys.readouterr().out


def test_memory_as_a_dict_says_that_it_is_a_bound():
    import transformers as hf

    config = hf.Wav2Vec2Config(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    found = estimate_model_memory(hf.Wav2Vec2ForCTC(config))
    assert found["method"] == "formula" or found["is_upper_bound"]
