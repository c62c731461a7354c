"""What msprobe itself makes of its files, and what we make of them."""

import math
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from made_csv import database, scalars, tables

import vario
from starting import run_afresh, run_warm
from thorough import thorough
from vario.compat.msprobe import CSV2DBConfig, csv2db, csv2tensorboard_by_step
from vario.compat.msprobe.csv_folders import TENSOR_KINDS
from vario.compat.msprobe.importing import import_msprobe
from vario.compat.msprobe.to_sqlite import KINDS

SCRIPT = Path(__file__).with_name("peer_conversions.py")


@pytest.fixture(scope="module")
def converted(peer, tmp_path_factory):
    base = tmp_path_factory.mktemp("peer")
    for version, words in {"26.2.0": ["train", "tensorboard"], "8.3.0": ["sqlite"]}.items():
        # The older release needs the numpy of its day, and so a process that has not imported ours.
        start = run_warm if version == "26.2.0" else run_afresh
        result = start([SCRIPT, base, *words], env=peer(version))
        assert result.returncode == 0, result.stderr
    return base


def comparable(points):
    return [(step, "nan" if math.isnan(value) else value) for step, value in points]


@thorough
def test_event_files_hold_the_same_tags_steps_and_values(converted, tmp_path):
    csv2tensorboard_by_step(converted / "in", output_dirpath=tmp_path / "ours")
    kinds = sorted(path.name for path in (converted / "tensorboard/rank0").iterdir())
    assert kinds == sorted(set(TENSOR_KINDS) - {"param"})
    for kind in kinds:
        theirs = scalars(converted / "tensorboard/rank0" / kind)
        ours = scalars(tmp_path / "ours/rank0" / kind)
        assert {tag: comparable(points) for tag, points in ours.items()} == {
            tag: comparable(points) for tag, points in theirs.items()
        }


def test_the_database_has_the_same_tables_and_rows(converted, tmp_path):
    csv2db(CSV2DBConfig(converted / "in", process_num=2, step_partition=10, output_dirpath=tmp_path))
    theirs, ours = converted / "sqlite/monitor_metrics.db", tmp_path / "monitor_metrics.db"
    assert database(ours) == database(theirs)
    assert {key[0] for key in database(ours)} == set(KINDS) - {"param"}
    assert layout(ours) == layout(theirs)


def layout(path):
    """Columns, keys and links of every table, and the small tables whole; numbers that stand for names left out."""
    with closing(sqlite3.connect(path)) as connection:
        names = dict(connection.execute("select metric_id, metric_name from monitoring_metrics").fetchall())
        small = ("monitoring_targets", "monitoring_metrics", "metric_stats", "global_stats")
        found = {name: describe(connection, name) for name in small}
        for (table,) in tables(connection):
            _, number, rest = table.split("_", 2)
            found[f"{names[int(number)]} {rest}"] = describe(connection, table)
        statistics = connection.execute("select metric_id, stat_name from metric_stats").fetchall()
        found["statistics"] = sorted((names[number], name) for number, name in statistics)
        found["facts"] = connection.execute("select * from global_stats order by 1").fetchall()
    return found


def describe(connection, table):
    columns = connection.execute(f"pragma table_info({table})").fetchall()
    links = [row[2:5] for row in connection.execute(f"pragma foreign_key_list({table})")]
    (text,) = connection.execute("select sql from sqlite_master where name = ?", (table,)).fetchone()
    return columns, links, "WITHOUT ROWID" in text, "AUTOINCREMENT" in text, " ".join(text.split()).count("CHECK")


def test_an_imported_run_has_the_numbers_of_the_files(converted, tmp_path):
    imported = import_msprobe(converted / "in", tmp_path, "run")
    run = vario.open_run(imported.path)
    assert (imported.num_steps, imported.ranks, imported.remarks) == (8, [0], [])
    kinds = {
        "grad_reduced": ("gradient_applied", "1.weight", "1.weight"),
        "grad_unreduced": ("gradient_accumulated", "1.weight", "1.weight"),
        "param_updated": ("weight", "1.weight", "1.weight"),
        "param_origin": ("weight_before", "1.weight", "1.weight"),
        "exp_avg_sq": ("moment_before", "1.weight:exp_avg_sq", "1.weight"),
        "actv": ("activation", "1:output", "1.output:micro1"),
        "other": ("direction", "1.weight", "1.weight"),
    }
    theirs = database(converted / "sqlite/monitor_metrics.db")
    for kind, (quantity, target, name) in kinds.items():
        name, _, micro = name.partition(":micro")
        rows = {key[2]: row for key, row in theirs.items() if (key[0], key[3], key[5]) == (kind, name, int(micro or 0))}
        for statistic in ("norm", "min", "max", "mean", "nans", "zeros"):
            series = run.series(target, quantity, statistic, micro_steps=True)
            own = series.micro_steps == int(micro or 0)
            ours = dict(zip(series.steps[own].tolist(), series.values[own].tolist(), strict=True))
            wanted = {step: math.nan if row[statistic] is None else row[statistic] for step, row in rows.items()}
            assert ours == pytest.approx(wanted, rel=1e-6, nan_ok=True), (kind, statistic)
        assert len(rows) == (7 if kind == "exp_avg_sq" else 8)


def test_the_first_inf_of_an_imported_run_is_found(converted, tmp_path):
    run = vario.open_run(import_msprobe(converted / "in", tmp_path, "run").path)
    onset = vario.first_bad(run)
    assert (onset.step, onset.quantity, onset.target) == (6, "gradient_applied", "3.weight")
