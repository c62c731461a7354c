"""A run folder from a stranger is read as data: no name runs, no link leads out, nothing is waited for."""

import json
import os
import shutil
import socket

import pytest

import made_runs
import vario
from vario.core.errors import ConfigError, RunCorrupt, RunError, RunNotFound
from vario.runs.files.rank_json import read_structure
from vario.sinks.store import Store
from vario.store.follow_log import WatchLog

INJECTION = (
    """g" as select 1 as a; copy (select 'print(42)') to 'poc.py' (header false, format csv); create view "z""",
    "a'b",
    "..",
    "gradient; drop view scalar",
    "\u0261radient",
    "x" * 65,
    "outlines",
    "-",
    "",
)
SPECIAL = ("pipe", "device", "socket", "link", "endless")


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    """A run of parts and rollups, and one of live streams, whose writer died."""
    place = tmp_path_factory.mktemp("seed")
    records = [made_runs.record(step, made_runs.frame(step), made_runs.frame(step, "weight")) for step in range(12)]
    stores = {"parts": (Store(part_steps=4, small_part_bytes=0, rollup_min_rows=8, bucket_steps=4), "finished")}
    for name, (store, close) in {**stores, "live": (Store(), None)}.items():
        made_runs.write_run(place / name, records, store, close)
    return place


@pytest.fixture
def copied(seed, tmp_path):
    """Copies of these runs, to be spoiled."""
    shutil.copytree(seed, tmp_path / "runs")
    return tmp_path / "runs"


def put(path, kind):
    """Something else in the place of a file; gives what keeps it there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        # Its name must be short, wherever the folder lies.
        with socket.socket(socket.AF_UNIX) as bound:
            here = os.getcwd()
            os.chdir(path.parent)
            try:
                bound.bind(path.name)
            finally:
                os.chdir(here)
    else:
        path.symlink_to({"device": "/dev/null", "endless": "/dev/zero", "link": "/etc/hostname"}[kind])


@pytest.mark.parametrize("name", INJECTION)
def test_a_name_in_a_run_is_never_code(copied, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(copied / "live/rank0/gradient.live.arrow", copied / f"live/rank0/{name}.live.arrow")
    if name not in ("", "..", "outlines"):
        shutil.copytree(copied / "parts/rank0/gradient", copied / f"parts/rank0/{name}")
    for run in vario.list_runs(copied):
        assert run.quantities() == ["gradient", "scalar", "weight"]
        assert run.sql("select count(*) as n from gradient").column("n").to_pylist() == [48]
    assert os.listdir(tmp_path) == ["runs"]


@pytest.mark.parametrize(
    "query",
    [
        "copy (select 1) to 'out.csv'",
        "select * from read_csv('/etc/passwd')",
        "select * from '/etc/passwd'",
        "attach 'own.db'",
        "install httpfs",
        "load httpfs",
        "set enable_external_access = true",
        "export database 'out'",
        "select * from glob('/*')",
        "select 1; copy (select 1) to 'out.csv'",
        "select * from readers",
    ],
)
def test_a_query_reaches_the_rows_and_nothing_else(copied, tmp_path, monkeypatch, query):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^sql: "):
        vario.open_run(copied / "parts").sql(query)
    assert os.listdir(tmp_path) == ["runs"]


def test_sql_scans_only_what_a_filter_leaves_over_parts_and_live_rows(copied):
    for name in ("parts", "live"):
        run = vario.open_run(copied / name)
        found = run.sql("select step, norm from gradient where target = 'head.weight' and step >= 9 order by step")
        series = run.series("head.weight", "gradient", "norm")
        assert found.column("step").to_pylist() == [9, 10, 11]
        assert found.column("norm").to_pylist() == pytest.approx(series.values[9:].tolist())


FILES = ("run.json", "rank0/rank.json", "rank0/structure.json", "rank0/alerts.jsonl", "watch/alerts.jsonl")
LIVE = ("rank0/gradient.live.arrow", "rank0/scalar.live.arrow")
PARTS = ("rank0/gradient/part-000002.parquet", "rank0/outlines/gradient/1-000001-000003.parquet")


def read_everything(run):
    """All that a report, a page and a script ask for."""
    run.alerts, run.state, run.rank_states, run.last_step  # noqa: B018
    run.structure()
    for quantity in run.quantities():
        run.targets(quantity)
        run.steps(quantity)
        run.to_arrow(quantity)


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("inner", [*FILES, *LIVE, *PARTS])
def test_what_is_no_file_of_the_run_is_neither_waited_for_nor_read(copied, kind, inner):
    path = copied / ("live" if inner in LIVE else "parts") / inner
    path.parent.mkdir(exist_ok=True)
    put(path, kind)
    with pytest.raises(RunCorrupt, match=r"not followed|not a file") as refused:
        read_everything(vario.open_run(path.parents[len(path.relative_to(copied).parts) - 2]))
    assert path.name in str(refused.value)
    # The other run is as it was.
    (whole,) = [run for run in vario.list_runs(copied) if run.path != path.parents[inner.count("/")]]
    read_everything(whole)


@pytest.mark.parametrize("inner", ["rank0", "rank0/gradient", "rank0/outlines", "rank0/outlines/gradient"])
def test_a_linked_folder_inside_a_run_is_left_out(copied, tmp_path, inner, caplog):
    path = copied / "parts" / inner
    shutil.move(path, tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    run = vario.open_run(copied / "parts")
    if inner == "rank0":
        assert run.ranks == []
        assert "skipped" in caplog.text
    elif inner == "rank0/gradient":
        assert run.quantities() == ["scalar", "weight"]
        assert "not followed" in caplog.text
    else:
        with pytest.raises(RunCorrupt, match="not followed"):
            run.targets("gradient")


def test_links_above_a_run_and_to_a_run_are_followed(copied, tmp_path):
    (tmp_path / "vario_runs").symlink_to(copied)
    (tmp_path / "newest").symlink_to(copied / "parts")
    for place in (tmp_path / "vario_runs" / "parts", tmp_path / "newest"):
        read_everything(vario.open_run(place))
    assert [run.name for run in vario.list_runs(tmp_path / "vario_runs")] == ["parts", "live"]
    assert len(vario.list_runs(tmp_path)) == 1


def test_a_file_that_is_larger_than_it_can_be_is_not_read(copied):
    for inner in ("rank0/rank.json", "rank0/gradient.live.arrow"):
        with open(copied / "live" / inner, "r+b") as file:
            file.truncate(1 << 40)
        with pytest.raises(RunCorrupt, match=r"but the limit is 67,108,864"):
            read_everything(vario.open_run(copied / "live"))


def test_watching_a_run_from_outside_writes_through_no_link(copied, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    (copied / "parts" / "watch").mkdir()
    (copied / "parts" / "watch" / "alerts.jsonl").symlink_to(victim)
    alert = vario.Alert(
        rule="x",
        kind="exact",
        severity="page",
        step=1,
        rank=0,
        quantity="gradient",
        target=None,
        value=1.0,
        text="found",
    )
    with pytest.raises(RunError):
        WatchLog(copied / "parts", [0]).add([alert], [])
    (copied / "live" / "watch").symlink_to(tmp_path / "away", target_is_directory=True)
    (tmp_path / "away").mkdir()
    with pytest.raises(RunError):
        WatchLog(copied / "live", [0]).add([alert], [])
    assert victim.read_text() == "mine\n"
    assert os.listdir(tmp_path / "away") == []


def test_ranks_are_counted_by_the_names_a_writer_gives(copied):
    for name in ("rank00", "rank\u0663", "rank-1", "rank99999999", "rank"):
        (copied / "parts" / name).mkdir()
    assert vario.open_run(copied / "parts").ranks == [0]


def test_a_run_that_goes_while_it_is_read_is_not_found(copied):
    run = vario.open_run(copied / "parts")
    shutil.rmtree(copied / "parts")
    with pytest.raises(RunNotFound, match="no longer exists"):
        run.ranks  # noqa: B018


@pytest.mark.parametrize("kind", ["modules", "parameters"])
def test_a_part_of_the_model_without_a_name_is_damage(tmp_path, kind):
    rank = tmp_path / "rank0"
    rank.mkdir()
    content = {"modules": [{"name": "root"}], "parameters": [{"name": "weight"}]}
    content[kind].append({"shape": [2]})
    (rank / "structure.json").write_text(json.dumps(content))
    with pytest.raises(RunCorrupt, match=f"a {kind[:-1]} has no 'name'"):
        read_structure(rank)
