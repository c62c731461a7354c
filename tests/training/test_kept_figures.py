"""Figures and tables that a script keeps beside its run."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

import vario
from vario.backends.numpy import NumpyModel
from vario.core import attachments as kept

mpl.use("agg")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def a_figure(width=2):
    figure = Figure(figsize=(width, 1))
    figure.subplots().plot([1, 2, 3])
    return figure


def test_figures_are_kept_by_name_and_step():
    with vario.start("run") as run:
        for step in (5, 10):
            run.log(a=1, step=step)
            run.log_figure("eval/Größe ../x", a_figure(step / 5))
        run.log_figure("axes", a_figure().axes[0], step=7)
    read = vario.open_run(run.path)
    assert [(one.name, one.step, one.file) for one in read.attachments] == [
        ("eval/Größe ../x", 5, "000001-eval-grosse-x.png"),
        ("axes", 7, "000003-axes.png"),
        ("eval/Größe ../x", 10, "000002-eval-grosse-x.png"),
    ]
    early, latest = read.figure("eval/Größe ../x", step=5), read.figure("eval/Größe ../x")
    assert early.startswith(kept.PNG_START)
    assert early != latest
    assert read.figure_path("axes").read_bytes() == read.figure("axes")


def test_a_monitor_keeps_them_too():
    weights = {"w": np.zeros(3)}
    model = NumpyModel(weights)
    with vario.watch(model, name="watched") as monitor:
        for _ in range(3):
            model.backward_ended({"w": np.ones(3)})
            model.update_ended()
        monitor.log_figure("f", a_figure())
        monitor.log_figure("png", vario.open_run(monitor.path) and bytes(kept.PNG_START) + b"rest")
    assert [(one.name, one.step) for one in vario.open_run(monitor.path).attachments] == [("f", 2), ("png", 2)]


@pytest.mark.parametrize(
    "table",
    [
        [{"word": "a", "count": 1}, {"word": "b", "count": None}],
        {"word": ["a", "b"], "count": np.array([1, None])},
        pd.DataFrame({"word": ["a", "b"], "count": pd.Series([1, None], dtype=object)}),
    ],
)
def test_tables_in_any_usual_form(table):
    with vario.start("run") as run:
        run.log_table("words", table)
    found = vario.open_run(run.path).table("words")
    assert (found.columns, found.rows, found.num_rows) == (["word", "count"], [["a", 1], ["b", None]], 2)


def test_rows_need_columns_and_cells_become_plain():
    with vario.start("run") as run:
        run.log_table("rows", [(1, np.float32(0.5)), (float("nan"), object)], columns=["a", "b"])
        run.log_table("long", [[number] for number in range(3000)])
    found = vario.open_run(run.path)
    assert found.table("rows").rows == [[1, 0.5], ["nan", "<class 'object'>"]]
    assert (found.table("long").columns, len(found.table("long").rows), found.table("long").num_rows) == (
        ["0"],
        kept.MOST_ROWS,
        3000,
    )


@pytest.mark.parametrize(
    ("log", "part", "words"),
    [
        (lambda run: run.log_figure("f", "picture.png"), "log_figure f", "expected a matplotlib figure or the bytes"),
        (lambda run: run.log_figure("f", b"GIF89a"), "log_figure f", "these bytes are not a PNG"),
        (lambda run: run.log_figure("", b""), "log_figure ", "expected 1 to 200 visible characters"),
        (lambda run: run.log_figure("f", b"", step=-1), "log_figure f", "expected a whole number of at least 0"),
        (lambda run: run.log_table("t", 3), "log_table t", "expected columns by name, a list of rows"),
        (lambda run: run.log_table("t", [[1], [1, 2]], ["a"]), "log_table t", "expected 1 values in every row"),
        (lambda run: run.log_table("t", [range(99)]), "log_table t", "99 columns; the limit is 50"),
        (lambda run: run.log_figure("f", kept.PNG_START + bytes(9 << 20)), "figures", "the limit is 8"),
    ],
)
def test_what_cannot_be_kept_is_named_once_and_nothing_raises(log, part, words, caplog):
    with vario.start("run") as run:
        log(run)
        log(run)
        run.log(a=1)
    read = vario.open_run(run.path)
    assert [off.part for off in read.parts_off] == [part]
    assert words in read.parts_off[0].error
    assert read.attachments == []
    assert len(read.series("a", "scalar")) == 1


def test_there_is_a_limit_to_their_number(monkeypatch):
    monkeypatch.setattr("vario.store.attachments.MOST_FILES", 3)
    for resume in (False, True):
        with vario.start("run", resume=resume) as run:
            for number in range(2):
                run.log_table(f"t{number}", [[number]], step=number + resume)
    read = vario.open_run(run.path)
    assert [one.file for one in read.attachments] == ["000001-t0.json", "000002-t1.json", "000003-t0.json"]
    assert "at most 3 figures and tables" in read.parts_off[0].error


def test_a_figure_made_again_for_its_step_replaces_the_earlier_one():
    with vario.start("run") as run:
        run.log_table("t", [[1]], step=4)
        run.log_table("t", [[2]], step=4)
    read = vario.open_run(run.path)
    assert len(read.attachments) == 1
    assert read.table("t").rows == [[2]]


def test_without_a_run_folder_nothing_is_kept(tmp_path):
    with vario.start("run", sinks=["in_memory"]) as run:
        run.log_figure("f", "not even looked at")
    assert list(tmp_path.iterdir()) == []


def test_a_reader_asks_for_what_is_there():
    with vario.start("run") as run:
        run.log_table("words", [[1]], step=3)
    read = vario.open_run(run.path)
    with pytest.raises(vario.ConfigError, match=r"table: no 'wrods'. Did you mean 'words'\?"):
        read.table("wrods")
    with pytest.raises(vario.ConfigError, match=r"no table 'words' of step 4. Steps that have one: 3."):
        read.table("words", step=4)
