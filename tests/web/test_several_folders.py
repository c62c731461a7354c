"""One server over several folders of runs: each with a name, which begins the names of its runs."""

import json

import pytest
from web_client import serving

import made_runs
from vario.cli import main
from vario.cli.arguments import named_folders
from vario.core.errors import ConfigError, RunNotFound
from vario.web.served import Served


def write(path):
    store = made_runs.small_parts()
    store.open(made_runs.header(path))
    store.write(made_runs.record(3, loss=0.5))
    store.close("finished", None)
    return path


@pytest.fixture
def folders(tmp_path):
    """A folder of runs, another with a run of the same name, and one that is a run."""
    write(tmp_path / "sweep" / "one")
    write(tmp_path / "sweep" / "deeper" / "two")
    write(tmp_path / "main" / "one")
    write(tmp_path / "alone")
    return {name: tmp_path / name for name in ("sweep", "main", "alone")}


def test_names_of_runs_begin_with_the_name_of_their_folder(folders):
    with serving(folders) as client:
        found = client.get("/api/runs")
        assert found["folder"] == "sweep, main, alone"
        assert {row["run"] for row in found["runs"]} == {"sweep/one", "sweep/deeper/two", "main/one", "alone"}
        assert {row["name"] for row in found["runs"]} == {"one", "two", "alone"}
        for name, place in (("sweep/one", "sweep/one"), ("main/one", "main/one"), ("alone", "alone")):
            home = client.get("/api/run", run=name)
            assert home["path"] == str(folders["sweep"].parent / place)
            assert client.get("/api/series", run=name, series="scalar|loss|value")["curves"][0]["last"] == [0.5]
        assert client.get("/api/compare", a="sweep/one", b="main/one")["divergence"] is None
        assert len(client.get("/api/table", column="loss")["rows"]) == 4


def test_a_link_means_the_same_run_whatever_the_order_and_whatever_else_is_served(folders):
    orders = [folders, dict(reversed(folders.items())), {name: folders[name] for name in ("main", "alone")}]
    for some in orders:
        assert Served(some).path_of("main/one") == folders["main"].resolve() / "one"


@pytest.mark.parametrize(
    "name",
    ["../alone", "main/../alone", "main/../../etc", "/etc", "other/one", "main/", "main", "", "one", "main/a\\b"],
)
def test_a_path_leads_out_of_none_of_them(folders, name):
    with serving(folders) as client:
        assert client.ask("/api/run", run=name).status in (400, 404)


def test_a_link_from_one_folder_into_another_is_refused(folders):
    (folders["main"] / "away").symlink_to(folders["sweep"] / "one")
    with serving(folders) as client:
        assert client.refused("/api/run", 404, run="main/away")
        assert [entry["path"] for entry in client.get("/api/runs")["left_out"]] == ["main/away"]


def post(client, path, **told):
    connection = client.connect()
    connection.request("POST", path, json.dumps(told), {"Content-Type": "application/json"})
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_notes_and_the_trash_are_beside_each_run(folders):
    with serving(folders, is_writable=True) as client:
        assert post(client, "/api/note", run="main/one", text="good")[0] == 200
        notes = {row["run"]: row["note"] for row in client.get("/api/runs")["runs"]}
        assert notes == {"main/one": "good", "sweep/one": "", "sweep/deeper/two": "", "alone": ""}
        assert (folders["main"] / ".vario" / "notes.json").exists()
        assert not (folders["sweep"] / ".vario").exists()
        assert post(client, "/api/trash", run="sweep/one", confirm="one") == (
            200,
            {"run": "sweep/one", "trash": ".vario/trash/one"},
        )
        assert (folders["sweep"] / ".vario" / "trash" / "one").is_dir()
        status, told = post(client, "/api/note", run="alone", text="x")
        assert status == 400
        assert "Serve the folder above it" in told["error"]


def test_prometheus_sees_them_all(folders):
    with serving(folders) as client:
        text = client.ask("/metrics").body.decode()
    assert 'vario_last_step{run="sweep/deeper/two"} 3' in text
    assert 'vario_last_step{run="main/one"} 3' in text


def test_folders_are_named_after_themselves_or_as_told(folders, tmp_path):
    sweep, main_runs = str(folders["sweep"]), str(folders["main"])
    assert named_folders([sweep]) == folders["sweep"]
    assert named_folders([sweep, main_runs]) == {"sweep": folders["sweep"], "main": folders["main"]}
    assert named_folders([f"a={sweep}", main_runs]) == {"a": folders["sweep"], "main": folders["main"]}
    (tmp_path / "x=y").mkdir()
    assert named_folders([str(tmp_path / "x=y"), sweep]) == {"x=y": tmp_path / "x=y", "sweep": folders["sweep"]}
    (tmp_path / "b" / "main").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"two folders are called 'main'. Name them: main1=.* main2="):
        named_folders([main_runs, str(tmp_path / "b" / "main")])
    with pytest.raises(ConfigError, match="is no name for a folder of runs"):
        named_folders([f"a/b={sweep}", main_runs])
    with pytest.raises(RunNotFound, match="nowhere: no such folder"):
        named_folders([sweep, "nowhere"])


def test_a_missing_one_of_several_is_named(folders, capsys):
    assert main(["serve", str(folders["main"]), "nowhere"]) == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
