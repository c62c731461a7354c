"""Changing notes over the API: only where it was allowed, only of runs below, only from this page."""

import json
import shutil

import pytest

from vario.runs.notes.keeping import trashed


@pytest.fixture
def runs(sweep, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(sweep / "lr0.1-w4-s0", tmp_path / "runs" / name)
    return tmp_path / "runs"


def tell(client, path, body, **headers):
    connection = client.connect()
    given = {"content-type": "application/json", **headers}
    connection.request("POST", path, json.dumps(body), given)
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_a_note_changes_the_list_and_nothing_in_the_run(serve, runs):
    with serve(runs, is_writable=True) as client:
        before = client.get("/api/runs")
        assert before["is_writable"]
        status, _ = tell(client, "/api/note", {"run": "one", "title": "mine", "tags": ["a"], "is_starred": True})
        assert status == 200
        rows = {row["run"]: row for row in client.get("/api/runs")["runs"]}
        assert (rows["one"]["title"], rows["one"]["tags"], rows["one"]["is_starred"]) == ("mine", ["a"], True)
        assert rows["two"]["title"] == "two"
        found = client.get("/api/table", column=["tags"], where="star")
        assert [row["values"] for row in found["rows"]] == [["a"]]


def test_deleting_needs_the_name_again(serve, runs):
    with serve(runs, is_writable=True) as client:
        assert tell(client, "/api/trash", {"run": "one"})[0] == 400
        assert tell(client, "/api/trash", {"run": "one", "confirm": "two"})[0] == 400
        status, told = tell(client, "/api/trash", {"run": "one", "confirm": "one"})
        assert (status, told["trash"]) == (200, ".vario/trash/one")
        assert [row["run"] for row in client.get("/api/runs")["runs"]] == ["two"]
        assert tell(client, "/api/note", {"run": ".vario/trash/one", "text": "x"})[0] == 400
    assert trashed(runs) == ["one"]


def test_a_read_only_server_refuses(serve, runs):
    with serve(runs) as client:
        assert not client.get("/api/runs")["is_writable"]
        for path in ("/api/note", "/api/trash", "/api/charts"):
            assert tell(client, path, {"run": "one", "confirm": "one"})[0] == 405
    assert sorted(path.name for path in runs.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("name", [".", "..", "../runs/one", "/etc", "none", ".vario/trash/one", "one/../two/.."])
def test_only_runs_below_the_folder(serve, runs, name):
    with serve(runs, is_writable=True) as client:
        for path in ("/api/note", "/api/trash"):
            assert tell(client, path, {"run": name, "confirm": name.rpartition("/")[2]})[0] in (400, 404)
    assert sorted(path.name for path in runs.parent.iterdir()) == ["runs"]
    assert sorted(path.name for path in runs.iterdir() if path.name != ".vario") == ["one", "two"]


def test_a_served_run_has_no_place_beside_it(serve, runs):
    with serve(runs / "one", is_writable=True) as client:
        status, told = tell(client, "/api/note", {"run": ".", "text": "x"})
        assert status == 400
        assert "Serve the folder above" in told["error"]
    assert not (runs / ".vario").exists()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"host": "evil.example"}, 403),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_other_sites_cannot_change_anything(serve, runs, headers, status):
    with serve(runs, is_writable=True) as client:
        assert tell(client, "/api/note", {"run": "one", "text": "x"}, **headers)[0] == status
    assert not (runs / ".vario").exists()


def test_the_token_is_needed(serve, runs):
    with serve(runs, token="a" * 24, is_writable=True) as client:
        assert tell(client, "/api/note", {"run": "one", "text": "x"})[0] == 401
        assert tell(client, "/api/note", {"run": "one", "text": "x"}, authorization=f"Bearer {'a' * 24}")[0] == 200


@pytest.mark.parametrize(
    "body", [[], "x", {"run": 3}, {"run": "one", "stars": 5}, {"run": "one", "text": "x" * 200_000}]
)
def test_odd_bodies_are_refused(serve, runs, body):
    with serve(runs, is_writable=True) as client:
        assert tell(client, "/api/note", body)[0] in (400, 413)


def test_charts_are_stored_for_the_folder_and_come_back(serve, runs):
    charts = {"numbers": ["val_loss", "loss"], "draw": ["loss|log|0.5|wide"], "by": "lr", "best": True, "smooth": 0.2}
    with serve(runs, is_writable=True) as client:
        assert client.get("/api/charts") == {"arrangement": None}
        status, told = tell(client, "/api/charts", charts)
        assert status == 200
        assert told["arrangement"] == {**charts, "along": "", "log": False}
        assert client.get("/api/charts") == told
    assert sorted(path.name for path in runs.iterdir()) == [".vario", "one", "two"]


@pytest.mark.parametrize(
    "charts",
    [{}, {"numbers": []}, {"numbers": [1]}, {"numbers": ["a"] * 99}, {"numbers": ["a"], "smooth": 2}, {"numbers": "a"}],
)
def test_what_cannot_be_charts_is_refused(serve, runs, charts):
    with serve(runs, is_writable=True) as client:
        assert tell(client, "/api/charts", charts)[0] == 400
    assert not (runs / ".vario").exists()


@pytest.mark.parametrize("text", ["[", '{"format": 1, "numbers": 3}', '{"format": 9, "numbers": ["a"]}', "{}"])
def test_damaged_charts_count_as_none(serve, runs, text):
    (runs / ".vario").mkdir()
    (runs / ".vario" / "charts.json").write_text(text)
    with serve(runs) as client:
        assert client.get("/api/charts") == {"arrangement": None}
