"""Numbers agree wherever they are shown: one loss, one speed, differences in the order of their column, real names."""

import json
import re

import pytest
import torch
from torch import nn

import little_trainings
import vario
from sweep import train_one
from vario.cli import main
from vario.notices.message import Message
from vario.runs.views.heat import read_heat
from vario.runs.views.status.brief import read_brief
from vario.runs.views.status.vitals import read_vitals


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two runs of a sweep that differ in the learning rate."""
    import argparse

    folder = tmp_path_factory.mktemp("two")
    for rate in (0.1, 0.3):
        train_one(folder, argparse.Namespace(lr=rate, width=4, seed=0, act="tanh"))
    return folder


def printed(capsys, *arguments):
    assert main([str(each) for each in arguments]) == 0
    return capsys.readouterr().out


def test_the_loss_is_the_last_one_everywhere_or_its_kind_is_said(two, capsys):
    path = two / "lr0.1-w4-s0"
    run = vario.open_run(path)
    last = run.series("loss", "scalar").values[-1]
    assert read_vitals(run).loss.value == read_brief(run).loss == last
    rows = json.loads(printed(capsys, "ls", two, "--columns", "loss,loss:last", "--json"))
    assert {(row["loss"], row["loss:last"]) for row in rows if row["run"] == path.name} == {(last, last)}
    plain = json.loads(printed(capsys, "ls", two, "--json"))
    assert [row["loss"] for row in plain if row["name"] == path.name] == [last]
    assert f"last {last:.4g}" in printed(capsys, "report", path)
    assert re.search(rf"current +{last:.4g} at step 15", printed(capsys, "progress", path))
    assert "last loss" in printed(capsys, "ls", two, "--all")
    assert "last loss" in printed(capsys, "top", two, "--once")


def test_steps_per_second_is_the_same_on_all_screens(two, capsys):
    for name in ("lr0.1-w4-s0", "lr0.3-w4-s0"):
        run = vario.open_run(two / name)
        steps = run.steps("scalar")
        times = run.reader(0, "scalar").times(run.sessions, steps)
        expected = (steps[-1] - steps[0]) / (times[-1] - times[0])
        assert read_vitals(run).pace.steps_per_second == pytest.approx(expected)
        assert read_brief(run).pace.steps_per_second == pytest.approx(expected)


def test_a_pause_between_sessions_is_not_counted(tmp_path):
    import made_runs

    for first, start in ((0, 0.0), (10, 5000.0)):
        store = made_runs.small_parts()
        store.open(made_runs.header(tmp_path / "run", resume=first > 0, first_step=first or None))
        for step in range(first, first + 10):
            store.write(made_runs.record(step, time=start + 2.0 * (step - first), loss=1.0))
        store.close("finished", None)
    run = vario.open_run(tmp_path / "run")
    assert len(run.sessions) == 2
    assert read_vitals(run).pace.steps_per_second == read_brief(run).pace.steps_per_second == 0.5


def test_differences_are_in_the_order_of_their_column(two, capsys):
    text = printed(capsys, "diff", two / "lr0.1-w4-s0", two / "lr0.3-w4-s0")
    block = text.partition("largest differences")[2]
    sizes = [re.search(r"([\d.]+) (%|times)", line) for line in block.splitlines()[1:] if line.strip()]
    values = [float(found[1]) / 100 if found[2] == "%" else float(found[1]) - 1 for found in sizes]
    assert len(values) > 5
    assert values == sorted(values, reverse=True)
    assert re.search(r"lr +0.1 +0.3 +3 times", block)


def test_a_deviation_is_a_number_for_people(two):
    found = vario.diff(vario.open_run(two / "lr0.1-w4-s0"), vario.open_run(two / "lr0.3-w4-s0"))
    assert max(each.deviations for each in found.most) <= 1000


def test_a_drop_of_gradients_is_called_so_everywhere(tmp_path, capsys):
    path = little_trainings.train_with_drop(tmp_path / "fell")
    run = vario.open_run(path)
    assert [(alert.rule, alert.label) for alert in run.alerts] == [("grad_spike", "gradient drop")]
    assert "gradient of 'blocks.1.0.weight' fell to" in run.alerts[0].text
    texts = []
    for words in (["check", "--all"], ["report"], ["diagnose"]):
        main([*words, str(path)])
        texts.append(capsys.readouterr().out)
    for text in (*texts, run._repr_html_(), Message(run.incidents[0], "fell").title):
        assert "gradient drop" in " ".join(text.split())
        assert "spike" not in text


class Words(nn.Module):
    """Token ids and a causal mask of the lowest number, as language models take them."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50_000, 16)
        self.attn = nn.MultiheadAttention(16, 2, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, ids, mask):
        x = self.embed(ids)
        return self.head(self.attn(x, x, x, attn_mask=mask, need_weights=False)[0]).square().mean()


@pytest.mark.parametrize("hidden", [-torch.inf, torch.finfo(torch.float32).min], ids=["inf", "lowest"])
def test_token_ids_and_masks_are_neither_the_brightest_nor_broken(tmp_path, hidden):
    torch.manual_seed(0)
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    mask = torch.triu(torch.full((8, 8), hidden), diagonal=1)
    options = {"quantities": ["activation"], "every": 1, "strict": True}
    with vario.watch(model, optimizer, directory=str(tmp_path), name="words", **options) as monitor:
        for _ in range(6):
            loss = model(torch.randint(40_000, 50_000, (4, 8)), mask)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
    run = vario.open_run(tmp_path / "words")
    heat = read_heat(run, "activation", "absmax")
    kinds = dict(zip(heat.targets, heat.kinds, strict=True))
    assert kinds["embed:input"] == "indices"
    assert {kind for name, kind in kinds.items() if "mask" in name} == {"mask"}
    inputs = {name for name in kinds if name.startswith("root:input") and kinds[name] != "mask"}
    assert {name for name, kind in kinds.items() if kind == "indices"} == {"embed:input", *inputs}
    assert kinds["embed:output"] == kinds["head:output"] == ""
    assert not heat.bad.any()
    sizes = heat.values[[not kind for kind in heat.kinds]]
    for rows in range(1, len(heat.targets)):
        merged = read_heat(run, "activation", "absmax", rows=rows)
        assert not merged.bad.any()
        grey = [merged.kinds[row] if merged.kinds else "" for row in range(rows)]
        assert merged.values[[not kind for kind in grey]].max() == sizes.max()
        assert set(merged.left_out) <= {name for name, kind in kinds.items() if kind}
    assert read_heat(run, "activation", "nans", rows=1).left_out == ()
