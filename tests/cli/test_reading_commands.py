"""ls, report, show, export and parts, on runs with known numbers."""

import csv
import json

import pyarrow.parquet as pq
import pytest

import golden_files
import synthetic
from vario.cli import main
from vario.cli.arguments import DEFAULT_DIRECTORY
from vario.config import Config


def shown(capsys, *words):
    code = main(list(words))
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


def refused(capsys, *words):
    assert main(list(words)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ls", ["ls"]),
        ("report_broken", ["report", "broken"]),
        ("report_healthy", ["report", "vario_runs/healthy"]),
        ("show_one", ["show", "loss"]),
        ("show_one_logarithmic", ["show", "broken", "layers.1:output", "--statistic", "absmax"]),
        ("show_many", ["show", "broken", "layers.*", "--quantity", "activation", "--statistic", "rms"]),
        ("show_last", ["show", "healthy", "head.weight", "--quantity", "weight", "--last", "3"]),
    ],
)
def test_what_is_printed(name, words, healthy_run, broken_run, capsys):
    golden_files.check(name, shown(capsys, *words))


def test_the_list_of_runs_is_newest_last_and_has_their_paths(healthy_run, broken_run, capsys):
    listed = json.loads(shown(capsys, "ls", "--json"))
    assert [run["path"] for run in listed] == ["vario_runs/healthy", "vario_runs/broken"]
    assert [run["loss"] for run in listed] == [pytest.approx(0.8163, abs=1e-4), "nan"]
    assert listed[0]["last_step"] == 39


def test_no_runs_is_an_empty_list(run_folder, capsys):
    assert json.loads(shown(capsys, "ls", "--json")) == []
    assert shown(capsys, "ls") == ""


def test_the_newest_run_is_meant_when_none_is_named(healthy_run, broken_run, capsys):
    assert json.loads(shown(capsys, "report", "--json"))["name"] == "broken"


def test_a_run_without_any_step_is_listed(run_folder, capsys):
    synthetic.write_run(run_folder / "vario_runs" / "empty", num_steps=0)
    (listed,) = json.loads(shown(capsys, "ls", "--json"))
    assert (listed["loss"], listed["last_step"], listed["quantities"]) == (None, None, [])
    assert "empty" in shown(capsys, "ls")


def test_no_run_at_all_says_how_to_get_one(run_folder, capsys):
    assert "Start one with `vario run`" in refused(capsys, "report")


def test_runs_are_looked_for_where_they_are_made():
    assert Config().directory == DEFAULT_DIRECTORY


def test_all_ranks_can_be_merged(healthy_run, capsys):
    (one,) = json.loads(shown(capsys, "show", "head.weight", "--quantity", "weight", "--json"))
    (merged,) = json.loads(shown(capsys, "show", "head.weight", "--quantity", "weight", "--rank", "all", "--json"))
    assert merged["values"] == one["values"]


def test_a_mistyped_run_names_the_nearest(healthy_run, capsys):
    assert "healthy" in refused(capsys, "report", "heathly")


def test_the_report_in_json_names_the_first_bad_tensor(broken_run, capsys):
    report = json.loads(shown(capsys, "report", "--json"))
    assert report["first_bad"]["target"] == "head:input"
    assert report["first_bad"]["step"] == 25
    assert report["jump"]["target"] == "layers.1:input"
    assert report["loss"]["last"] == "nan"


def test_the_numbers_of_a_curve_in_json(broken_run, capsys):
    (series,) = json.loads(shown(capsys, "show", "head.weight", "--quantity", "gradient", "--json", "--last", "20"))
    assert series["steps"] == list(range(20, 40))
    assert series["values"][4] == pytest.approx(0.1 * (1 + 0.02 * 24 * 2))
    assert series["values"][5] == "nan"


def test_one_word_that_is_a_folder_is_the_run(healthy_run, capsys):
    assert "learning_rate" in shown(capsys, "show", str(healthy_run))


def test_the_run_may_stand_on_either_side_of_what_is_shown(healthy_run, broken_run, capsys):
    first = json.loads(shown(capsys, "show", "healthy", "loss", "--json"))
    for words in (["loss", "healthy"], ["loss", "vario_runs/healthy"], ["vario_runs/healthy", "loss"]):
        assert json.loads(shown(capsys, "show", *words, "--json")) == first
    assert first != json.loads(shown(capsys, "show", "loss", "--json"))
    assert "'lss' matches no target" in refused(capsys, "show", "lss", "healthy")
    assert "'haelthy'" not in refused(capsys, "show", "loss", "haelthy")


def test_runs_in_nested_folders_are_listed_with_where_they_are(run_folder, capsys):
    for place in ("sweep/lr=1/a", "sweep/lr=2/a", "b", ".hidden/c", "sweep/lr=1/a/inside"):
        synthetic.write_run(run_folder / "out" / place, num_steps=2)
    listed = json.loads(shown(capsys, "ls", "out", "--json"))
    assert sorted(run["path"] for run in listed) == ["out/b", "out/sweep/lr=1/a", "out/sweep/lr=2/a"]
    table = shown(capsys, "ls", "out").splitlines()
    assert table[0].startswith("folder")
    assert {line.split()[0] for line in table[1:]} == {".", "sweep/lr=1", "sweep/lr=2"}
    assert [run["path"] for run in json.loads(shown(capsys, "ls", "out/b", "--json"))] == ["out/b"]
    assert "There are runs in its subfolders: out/sweep/lr=1/a, and 1 more (`vario ls out/sweep`)" in refused(
        capsys, "report", "out/sweep"
    )
    assert json.loads(shown(capsys, "ls", "out/sweep/lr=2", "--json"))[0]["name"] == "a"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "haed.weight", "--quantity", "weight"], "'haed.weight' matches no target of weight. Did you mean"),
        (["show", "x", "--quantity", "wieght"], "--quantity: unknown 'wieght'. Did you mean 'weight'?"),
        (["show", "head.weight", "--statistic", "nrom"], "statistic: unknown 'nrom'. Did you mean 'norm'?"),
        (["show", "head.weight", "--rank", "3"], "rank: 3 recorded nothing"),
        (["show", "head.weight", "--rank", "x"], "--rank: expected a number or 'all', got 'x'"),
        (["export", "--format", "xml"], "invalid choice: 'xml'"),
        (["export", "--format", "csv", "--quantity", "wieght"], "Did you mean 'weight'?"),
        (["export", "--format", "csv", "--output", "one.csv"], "cannot write 4 files to 'one.csv'"),
        (["export", "--format", "csv", "--output", "one.parquet"], "is not a csv file name"),
        (["parts", "--kind", "statistic"], "Did you mean 'statistics'?"),
    ],
)
def test_a_mistake_is_answered_with_the_right_word(words, message, healthy_run, capsys):
    assert message in refused(capsys, *words)


def test_csv_has_one_row_per_tensor_and_step_and_every_statistic(broken_run, capsys):
    written = json.loads(
        shown(capsys, "export", "--format", "csv", "--quantity", "gradient", "--output", "g.csv", "--json")
    )
    assert written == [{"path": "g.csv", "rank": 0, "quantity": "gradient", "num_rows": 160}]
    with open("g.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["step", "micro_step", "order", "target"]
    assert float(rows[0]["norm"]) == pytest.approx(0.1)
    assert rows[-1]["norm"] == "nan"
    assert float(rows[-1]["nans"]) == 50


def test_parquet_has_the_same_rows(healthy_run, capsys):
    shown(capsys, "export", "--format", "parquet", "--output", "tables")
    table = pq.read_table("tables/rank0_weight.parquet")
    assert table.num_rows == 160
    assert {"step", "target", "norm", "zeros"} <= set(table.column_names)
    assert pq.read_table("tables/rank0_scalar.parquet").column_names == ["step", "time", "target", "value"]


def test_nothing_is_overwritten_unless_forced(healthy_run, capsys):
    shown(capsys, "export", "--format", "csv")
    assert "Add --force" in refused(capsys, "export", "--format", "csv")
    shown(capsys, "export", "--format", "csv", "--force")


def test_parts_come_with_kind_origin_and_a_line_about_them(capsys):
    rows = json.loads(shown(capsys, "parts", "--json"))
    assert {"quantities", "statistics", "sinks"} <= {row["kind"] for row in rows}
    assert {
        "kind": "statistics",
        "name": "mean",
        "doc": "Arithmetic mean.",
        "origin": "vario.statistics.how_spread",
    } in rows
    assert all(row["doc"] for row in rows)
    assert "norm" in shown(capsys, "parts", "--kind", "statistics")
