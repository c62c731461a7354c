import math
import os
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest
from made_csv import NAMES, OPS, database, folder, interrupted, tables, values, write

from vario.compat.msprobe import CSV2DBConfig, csv2db
from vario.compat.msprobe.to_sqlite import convert_to_sqlite
from vario.core.errors import ConfigError, RunError


def expected(kind, steps, names=NAMES, rank=0, ops=OPS, micros=(0,), shift=0.0):
    return {
        (kind, rank, step, name, 0, micro): {
            op: value + shift
            for op, value in zip(ops, values(kind, name, step, rank, ops, micro), strict=True)
            if op != "id"
        }
        for step in steps
        for name in names
        for micro in micros
    }


def test_every_row_is_there_in_the_table_of_its_steps(tmp_path):
    for rank in (0, 3):
        path = folder(tmp_path, rank)
        write(path, "grad_reduced", range(8, 25), rank=rank)
        write(path, "actv", [8], rank=rank, micros=[0, 1])
        write(path, "other", [9], rank=rank)
    csv2db(CSV2DBConfig(tmp_path, step_partition=10, output_dirpath=tmp_path))
    wanted = {}
    for rank in (0, 3):
        wanted |= expected("grad_reduced", range(8, 25), rank=rank) | expected("other", [9], rank=rank)
        wanted |= expected("actv", [8], rank=rank, micros=(0, 1))
    assert database(tmp_path / "monitor_metrics.db") == wanted
    with closing(sqlite3.connect(tmp_path / "monitor_metrics.db")) as connection:
        names = {table for (table,) in tables(connection)}
        assert names == {f"metric_{kind}_step_{n}_{n + 9}" for kind in (1, 2, 3) for n in (0, 10, 20)}
        facts = dict(connection.execute("select * from global_stats").fetchall())
    assert facts == {"max_rank": 3, "min_step": 8, "max_step": 24, "step_partition_size": 10}


def test_the_output_goes_beside_the_input_unless_said_otherwise(tmp_path):
    write(folder(tmp_path), "grad_reduced", [0])
    done = convert_to_sqlite(CSV2DBConfig(tmp_path))
    assert done.output.name == "monitor_metrics.db"
    assert done.output.parent.parent == tmp_path
    assert done.output.parent.name.endswith("-csv2db")
    assert [found.name for found in done.output.parent.iterdir()] == ["monitor_metrics.db"]
    assert (done.ranks, done.num_rows, done.remarks) == ([0], len(NAMES), [])


@pytest.mark.parametrize("processes", [1, 2, 5])
def test_several_processes_make_the_very_same_database(tmp_path, processes):
    for rank in range(2):
        write(folder(tmp_path / "in", rank), "grad_reduced", range(9), rank=rank, per_file=2)
    csv2db(CSV2DBConfig(tmp_path / "in", process_num=processes, output_dirpath=tmp_path / "out"))
    with closing(sqlite3.connect(tmp_path / "out/monitor_metrics.db")) as connection:
        rows = connection.execute("select * from metric_1_step_0_499 order by rank, step, target_id").fetchall()
        targets = connection.execute("select target_name from monitoring_targets order by target_id").fetchall()
    assert [name for (name,) in targets] == list(NAMES)
    assert rows == [
        (rank, step, nth + 1, *_in_order(values("grad_reduced", name, step, rank)))
        for rank in range(2)
        for step in range(9)
        for nth, name in enumerate(NAMES)
    ]


def _in_order(numbers):
    """As the table has them: norm, min, max, zeros, nans, mean."""
    norm, low, high, mean, zeros, nans = numbers
    return norm, low, high, zeros, nans, mean


def test_nan_becomes_null_and_inf_stays(tmp_path):
    path = folder(tmp_path)
    (path / "grad_reduced_0-0.csv").write_text("vpp_stage,name,step,norm,max\n0,a,0,nan,inf\n1,a,0,1e-9,-inf\n")
    csv2db(CSV2DBConfig(tmp_path, output_dirpath=tmp_path))
    assert database(tmp_path / "monitor_metrics.db") == {
        ("grad_reduced", 0, 0, "a", 0, 0): {"norm": None, "max": math.inf},
        ("grad_reduced", 0, 0, "a", 1, 0): {"norm": 1e-9, "max": -math.inf},
    }


def test_a_torn_last_line_loses_only_itself(tmp_path, caplog):
    path = folder(tmp_path)
    write(path, "grad_reduced", range(2))
    torn = path / "grad_reduced_0-0.csv"
    torn.write_text(torn.read_text()[:-8])
    csv2db(CSV2DBConfig(tmp_path, process_num=2, output_dirpath=tmp_path))
    wanted = expected("grad_reduced", range(2))
    del wanted[("grad_reduced", 0, 0, "head.weight", 0, 0)]
    assert database(tmp_path / "monitor_metrics.db") == wanted
    assert f"{torn}:5: the last line is incomplete" in caplog.text


def test_of_rows_that_are_there_twice_the_later_ones_count(tmp_path, caplog):
    write(folder(tmp_path, tag="Dec04_00-00-00"), "grad_reduced", range(2, 6), shift=100.0)
    write(folder(tmp_path, tag="Dec03_00-00-00"), "grad_reduced", range(4), per_file=4)
    csv2db(CSV2DBConfig(tmp_path, process_num=2, output_dirpath=tmp_path))
    wanted = expected("grad_reduced", range(2)) | expected("grad_reduced", range(2, 6), shift=100.0)
    assert database(tmp_path / "monitor_metrics.db") == wanted
    assert "metric_1_step_0_499: 8 rows occur twice; the later ones are used" in caplog.text


def test_a_step_outside_the_range_in_the_files_name_has_its_place(tmp_path):
    path = folder(tmp_path)
    (path / "grad_reduced_0-0.csv").write_text("vpp_stage,name,step,norm\n0,a,0,1\n0,a,77,2\n")
    csv2db(CSV2DBConfig(tmp_path, step_partition=10, output_dirpath=tmp_path))
    found = database(tmp_path / "monitor_metrics.db")
    assert found[("grad_reduced", 0, 77, "a", 0, 0)] == {"norm": 2.0}


def test_a_database_that_is_there_is_left_alone(tmp_path):
    write(folder(tmp_path), "grad_reduced", [0])
    (tmp_path / "monitor_metrics.db").write_text("precious")
    with pytest.raises(ConfigError, match=r"output_dirpath: .*monitor_metrics.db' already exists"):
        csv2db(CSV2DBConfig(tmp_path, output_dirpath=tmp_path))
    assert (tmp_path / "monitor_metrics.db").read_text() == "precious"


def test_a_disk_that_is_full_leaves_no_half_of_a_database(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", range(300))
    config = f"CSV2DBConfig({str(tmp_path / 'in')!r}, output_dirpath={str(tmp_path / 'out')!r})"
    code = f"from vario.compat.msprobe import CSV2DBConfig, csv2db; csv2db({config})"
    # No file may grow beyond 64 KiB.
    command = ["bash", "-c", 'ulimit -f 64; exec "$0" -c "$1"', sys.executable, code]
    result = subprocess.run(command, capture_output=True, text=True)
    assert "RunError" in result.stderr
    assert "monitor_metrics.db: not created: " in result.stderr
    assert [found.name for found in tmp_path.iterdir()] == ["in"]


def test_an_interrupted_conversion_leaves_nothing(tmp_path):
    write(folder(tmp_path / "in"), "grad_reduced", range(5))
    slow = folder(tmp_path / "in") / "grad_reduced_5-5.csv"
    os.mkfifo(slow)
    # Its header is read beforehand; nobody ever writes into it again, so whoever reads it then waits.
    header = threading.Thread(target=slow.write_text, args=("vpp_stage,name,step,norm\n",))
    header.start()
    config = f"CSV2DBConfig({str(tmp_path / 'in')!r}, output_dirpath={str(tmp_path / 'some' / 'out')!r})"
    code = f"from vario.compat.msprobe import CSV2DBConfig, csv2db; csv2db({config})"
    said = interrupted(code, (tmp_path / "some/out/monitor_metrics.db.tmp").exists)
    header.join()
    # A codec that is interrupted says so behind the name.
    assert said.splitlines()[-1].split(":")[0] == "KeyboardInterrupt"
    assert [found.name for found in tmp_path.iterdir()] == ["in"]


def test_a_line_says_where_it_went(tmp_path, capsys):
    write(folder(tmp_path / "in"), "grad_reduced", [0], names=("head.weight",))
    assert csv2db(CSV2DBConfig(tmp_path / "in", output_dirpath=tmp_path / "out")) is None
    assert capsys.readouterr().out == f"{tmp_path / 'out/monitor_metrics.db'}  1 row, 1 rank\n"


def test_kinds_that_are_there_but_not_converted_are_named(tmp_path):
    for kind in ("grad_reduced", "other", "linear_hook"):
        write(folder(tmp_path / "in"), kind, [0])
    done = convert_to_sqlite(CSV2DBConfig(tmp_path / "in", output_dirpath=tmp_path / "out"))
    assert done.remarks == ["not converted: the files of linear_hook; `vario import` reads them"]


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (folder(tmp_path / "in") / "grad_reduced_2-2.csv").mkdir()
    with pytest.raises(RunError, match=r"Is a directory: .*grad_reduced_2-2.csv"):
        csv2db(CSV2DBConfig(tmp_path / "in", output_dirpath=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data_type_list": ["nothing"]}, "data_type_list: unknown 'nothing'"),
        ({"process_num": 1.5}, "process_num: expected a whole number of at least 1, got 1.5"),
        ({"step_partition": 0}, "step_partition: expected a whole number of at least 1, got 0"),
        ({"time_end": "Dec03"}, "time_end: expected a time like"),
        ({"monitor_path": "nowhere"}, "monitor_path: 'nowhere' is not a folder"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(tmp_path, monkeypatch, changes, words):
    monkeypatch.chdir(tmp_path)
    write(folder(tmp_path / "in"), "grad_reduced", [0])
    with pytest.raises(ConfigError) as refused:
        csv2db(CSV2DBConfig(**{"monitor_path": "in", "output_dirpath": "out", **changes}))
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_nothing_is_made_of_nothing(tmp_path):
    path = folder(tmp_path / "in")
    with pytest.raises(ConfigError, match=f"'{path}' has no file"):
        csv2db(CSV2DBConfig(tmp_path / "in"))
    assert list((tmp_path / "in").iterdir()) == [path]
