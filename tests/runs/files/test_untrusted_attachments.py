"""Figures and tables of a run from a stranger."""

import json
import os

import pytest

import vario
from vario.core import attachments as kept
from vario.core.errors import RunCorrupt

PNG = kept.PNG_START + b"..."


@pytest.fixture
def run(tmp_path):
    with vario.start("run", directory=tmp_path) as log:
        log.log(a=1)
        log.log_figure("f", PNG)
        log.log_table("t", {"a": [1]})
    return vario.open_run(tmp_path / "run")


def listed(run, **changes):
    """Replaces what the list says of the figure."""
    path = run.path / "rank0" / "attachments.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**line, **changes}) + "\n" for line in lines if line["kind"] == "figure"))


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "../../run.json"},
        {"file": "/etc/passwd"},
        {"file": "000001-f.json"},
        {"file": ["000001-f.png"]},
        {"kind": "page"},
        {"name": 3},
        {"name": "x" * 201},
        {"step": -1},
        {"step": 1e300},
        {"num_bytes": "many"},
    ],
)
def test_a_line_that_vario_cannot_have_written_is_left_out(run, changes):
    listed(run, **changes)
    assert run.attachments == []


@pytest.mark.parametrize("text", ["[1, 2]\n", "null\n", "{}\n", "\x00\n", '{"kind": "figure"\n', "[" * 100_000 + "\n"])
def test_lines_that_are_no_lines_are_left_out(run, text):
    (run.path / "rank0" / "attachments.jsonl").write_text(text)
    assert run.attachments == []


def test_a_torn_last_line_does_not_hide_the_others(run):
    with open(run.path / "rank0" / "attachments.jsonl", "a") as file:
        file.write('{"kind": "fig')
    assert [one.name for one in run.attachments] == ["f", "t"]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large", "text", "gone"])
def test_a_figure_that_is_none_is_refused_by_name(run, kind, tmp_path):
    path = run.figure_path("f")
    path.unlink()
    if kind == "link":
        (tmp_path / "elsewhere.png").write_bytes(PNG)
        path.symlink_to(tmp_path / "elsewhere.png")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        with open(path, "wb") as file:
            file.truncate(kept.MOST_FIGURE_BYTES + 1)
    elif kind == "text":
        path.write_text("<svg onload=alert(1)>")
    with pytest.raises(RunCorrupt, match=path.name):
        run.figure("f")


def test_the_folder_of_attachments_may_be_no_link(run, tmp_path):
    folder = run.path / "rank0" / "attachments"
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunCorrupt, match="is a link"):
        run.figure("f")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b'{"columns": 3}',
        b'{"columns": ["a"], "rows": [3]}',
        b'{"columns": ["a"], "rows": [[1]], "num_rows": -1}',
        json.dumps({"columns": ["a"] * 51, "rows": []}).encode(),
        json.dumps({"columns": ["a"], "rows": [[1]] * 1001}).encode(),
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_a_table_that_is_none_is_refused_by_name(run, content):
    path = next((run.path / "rank0" / "attachments").glob("*.json"))
    path.write_bytes(content)
    with pytest.raises(RunCorrupt, match=path.name):
        run.table("t")


def test_ragged_rows_and_odd_cells_are_made_plain(run):
    path = next((run.path / "rank0" / "attachments").glob("*.json"))
    path.write_text('{"columns": ["a", "b"], "rows": [[1], [1, {"x": 2}, 3], [Infinity, "y"]]}')
    assert run.table("t").rows == [[1, None], [1, "{'x': 2}"], ["inf", "y"]]
