"""Figures and tables as the server answers them."""

import pytest
from web_client import serving

import vario
from vario.core.attachments import PNG_START

PNG = PNG_START + b"a figure"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    with vario.start("run", directory=folder) as run:
        for step in (3, 7):
            run.log(a=1, step=step)
            run.log_figure("<b>f</b>", PNG + bytes([step]))
            run.log_table("t", [{"word": "<i>", "n": step, "x": float("nan")}])
    with vario.start("plain", directory=folder) as run:
        run.log(a=1)
    with serving(folder) as found:
        yield found


def test_the_list_and_its_files(server):
    found = server.get("/api/attachments", run="run")["attachments"]
    assert [(one["kind"], one["name"], one["step"], one["rank"]) for one in found] == [
        *(("figure", "<b>f</b>", 3, 0), ("table", "t", 3, 0)),
        *(("figure", "<b>f</b>", 7, 0), ("table", "t", 7, 0)),
    ]
    figure = server.ask("/api/figure", run="run", name="<b>f</b>", step=3)
    assert (figure.status, figure.headers["content-type"], figure.body) == (200, "image/png", PNG + b"\3")
    assert figure.headers["x-content-type-options"] == "nosniff"
    assert server.ask("/api/figure", run="run", name="<b>f</b>").body == PNG + b"\7"
    table = server.get("/api/attached", run="run", name="t", rank=0)
    assert table == {"columns": ["word", "n", "x"], "rows": [["<i>", 7, "nan"]], "num_rows": 1}


def test_the_overview_counts_them(server):
    assert server.get("/api/run", run="run")["num_attachments"] == 4
    assert server.get("/api/run", run="plain")["num_attachments"] == 0
    assert server.get("/api/attachments", run="plain") == {"attachments": []}


def test_what_is_not_there_is_refused(server):
    assert server.refused("/api/figure", run="run", name="f")["error"] == "figure: no 'f'. Known: <b>f</b>."
    assert "no table 't' of step 4" in server.refused("/api/attached", run="run", name="t", step=4)["error"]
    server.refused("/api/figure", run="run", name="t")
    server.refused("/api/figure", run="run", name="<b>f</b>", rank=1)
