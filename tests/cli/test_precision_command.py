"""`vario precision`, and distributions in SQL, exports and reports, on a real training."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pyarrow.parquet as pq
import pytest
import torch

import vario
from vario.cli import main
from vario.core.elements.precision import FORMATS

QUANTITIES = ["gradient", "weight", "activation", "distribution"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose gradients become too small for fp16, and the last gradient of its first layer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    place = tmp_path_factory.mktemp("precision")
    with vario.watch(model, optimizer, quantities=QUANTITIES, every=1, directory=place, name="run", strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            (model(torch.randn(16, 32)).square().mean() * 1e-4).backward()
            optimizer.step()
    return vario.open_run(place / "run"), model[0].weight.grad.numpy().astype(np.float64)


def words(capsys):
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_the_table_has_the_shares_of_numpy(trained, capsys):
    run, gradient = trained
    nonzero = np.abs(gradient[gradient != 0])
    for name, to in FORMATS.items():
        [one] = [found for found in run.precision("gradient").tensors if found.target == "0.weight"]
        assert one.num_elements == len(nonzero)
        assert one.as_is[name].flushed.low == (nonzero < to.flushed_below).mean()
        assert one.as_is[name].overflow.high == (nonzero > to.largest).mean()
        scaled = nonzero * 2.0 ** one.scaled[name].scale
        assert one.scaled[name].flushed.low == (scaled < to.flushed_below).mean()
        assert one.scaled[name].overflow.low <= (scaled > to.largest).mean() <= one.scaled[name].overflow.high
    assert main(["precision", str(run.path), "--quantity", "gradient", "--format", "fp16,e4m3"]) == 0
    text = words(capsys)
    share = 100 * (nonzero < FORMATS["fp16"].flushed_below).mean()
    assert "gradient 0.weight" in text
    assert f"{share:.2g} % to zero" in text
    assert "bf16" not in text


def test_json_has_all_tensors(trained, capsys):
    run, _ = trained
    assert main(["precision", str(run.path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == {"gradient": 2, "weight": 2, "activation": 2}
    assert {(one["quantity"], one["target"]) for one in found["tensors"]} >= {
        ("weight", "2.bias"),
        ("gradient", "0.bias"),
    }
    assert main(["precision", str(run.path), "--tensor", "0.weight", "--quantity", "gradient", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert sum(row["count"] for row in rows) == 3 * 32 * 64


def test_one_tensor_is_drawn_step_by_step(trained, capsys):
    run, _ = trained
    assert main(["precision", str(run.path), "--tensor", "0.weight", "--quantity", "gradient"]) == 0
    text = capsys.readouterr().out
    assert "gradient of 0.weight" in text
    assert "█" in text
    assert [line.split()[0] for line in text.splitlines()[2:]] == ["0", "1", "2"]


def test_the_report_names_what_would_lose_most(trained, capsys):
    run, _ = trained
    assert main(["report", str(run.path)]) == 0
    assert "would flush to zero in fp16" in words(capsys)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--format", "fp17"], "fp16"),
        (["--quantity", "wieght"], "weight"),
        (["--step", "99"], "at step 99"),
        (["--tensor", "0.wieght"], "0.weight"),
        (["--top", "0"], "at least 1"),
    ],
)
def test_a_wrong_option_names_the_way_out(trained, capsys, asked, said):
    run, _ = trained
    assert main(["precision", str(run.path), *asked]) != 0
    assert said in capsys.readouterr().err


def test_show_says_where_distributions_are(trained, capsys):
    run, _ = trained
    assert main(["show", str(run.path), "*", "--quantity", "distribution"]) != 0
    assert "vario precision" in capsys.readouterr().err


def test_sql_and_exports_have_a_row_for_each_bin(trained, tmp_path, capsys):
    run, gradient = trained
    where = "quantity = 'gradient' and target = '0.weight' and step = 2"
    found = run.sql(f"select low, high, count from distribution where {where}").to_pydict()
    for low, high, count in zip(found["low"], found["high"], found["count"], strict=True):
        size = np.abs(gradient)
        sign = gradient < 0 if low < 0 else gradient > 0
        inside = sign & (size >= min(abs(low), abs(high))) & (size < max(abs(low), abs(high)))
        assert count == (inside.sum() if low != high else (gradient == 0).sum())
    assert run.sql("select count(*) as n from distribution where step = 2 and quantity = 'weight'")["n"][0].as_py() > 4
    assert main(["export", str(run.path), "--format", "csv", "--output", str(tmp_path / "tables")]) == 0
    assert "rank0_distribution.csv" in capsys.readouterr().out
    table = pyarrow.csv.read_csv(tmp_path / "tables" / "rank0_distribution.csv")
    assert table.column_names == ["rank", "step", "micro_step", "quantity", "target", "low", "high", "count"]
    asked = ["--format", "parquet", "--quantity", "distribution", "--output", str(tmp_path / "parquet")]
    assert main(["export", str(run.path), *asked]) == 0
    stored = pyarrow.parquet.read_table(tmp_path / "parquet" / "rank0_distribution.parquet")
    assert stored.num_rows == table.num_rows


def test_a_run_without_distributions_says_how_to_get_them(tmp_path, capsys):
    model = torch.nn.Linear(3, 3)
    with vario.watch(model, quantities=["gradient"], directory=tmp_path, name="run"):
        model(torch.ones(2, 3)).mean().backward()
    assert main(["precision", str(tmp_path / "run")]) != 0
    assert "every 50th step" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [b"\x80", b"", b"\xff" * 20, b"\x00\x00\x00\x00\xff\x02\x01"])
def test_damaged_distributions_are_refused_by_name(trained, tmp_path, damage):
    run, _ = trained
    [part] = (run.path / "rank0" / "gradient").glob("part-*.parquet")
    table = pq.read_table(part)
    column = pa.array([damage] * table.num_rows, pa.binary())
    table = table.set_column(table.column_names.index("detail"), "detail", column)
    copy = tmp_path / "copy"
    (copy / "rank0" / "gradient").mkdir(parents=True)
    for name in ("run.json", "rank0/structure.json", "rank0/rank.json"):
        (copy / name).write_bytes((run.path / name).read_bytes())
    pq.write_table(table, copy / "rank0" / "gradient" / part.name, use_dictionary=["target"], column_encoding=None)
    broken = vario.open_run(copy)
    with pytest.raises(vario.VarioError, match="distribution"):
        broken.distribution("0.weight", "gradient")
    assert len(broken.series("0.weight", "gradient")) == 3
