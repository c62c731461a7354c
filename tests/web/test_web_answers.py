"""What the addresses answer, over real runs and a real server."""

import io
import json
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv
from web_client import SCRIPT_NAME, write_ranks

import little_trainings
import made_runs
import vario
from rollup_runs import write_rolled_up
from vario.web.addresses import charts
from vario.web.addresses.overview import RunRows
from vario.web.answer_cache import AnswerCache
from vario.web.api.answers import Answer
from vario.web.served import Served


def heat_of(body):
    """Head, values and flags of the page's own layout."""
    (length,) = struct.unpack_from("<I", body)
    assert length % 4 == 0
    head = json.loads(body[4 : 4 + length])
    size = head["rows"] * head["columns"]
    values = np.frombuffer(body, "<f4", size, 4 + length).reshape(head["rows"], head["columns"])
    flags = np.frombuffer(body, np.uint8, size, 4 + length + 4 * size).reshape(values.shape)
    assert len(body) == 4 + length + 5 * size
    return head, values, flags


def test_all_runs_below_the_folder_are_listed_newest_first(client, folder):
    found = client.get("/api/runs")
    assert found["folder"] == folder.name
    assert found["left_out"] == []
    assert {row["run"] for row in found["runs"]} == {"healthy", "deeper/broken", "ranks", SCRIPT_NAME}
    started = [row["started"] for row in found["runs"]]
    assert started == sorted(started, reverse=True)
    rows = {row["name"]: row for row in found["runs"]}
    assert rows["healthy"]["state"] == "finished"
    assert rows["healthy"]["step"] == 59
    run = vario.open_run(folder / "healthy")
    assert rows["healthy"]["loss"] == run.series("loss", "scalar").values[-1]
    assert len(rows["healthy"]["spark"]) == 60
    assert rows["healthy"]["incidents"]["page"] == 0
    assert rows["broken"]["incidents"]["page"] >= 1
    assert rows["broken"]["loss"] is None
    assert None in rows["broken"]["spark"]
    assert rows["ranks"]["world_size"] == 2


def test_a_run_that_tells_its_number_of_steps_has_progress(client):
    found = client.get("/api/run", run="ranks")
    assert (found["step"], found["total_steps"], found["progress"]) == (11, 24, 0.5)
    assert found["eta_seconds"] is None, "it has ended"
    assert found["steps_per_second"] == pytest.approx(1.0), "steps over time: a second lies between two of them"
    assert client.get("/api/run", run="healthy")["progress"] is None


def test_one_run_at_a_glance(client, folder):
    found = client.get("/api/run", run="deeper/broken")
    assert found["name"] == "broken"
    assert found["ranks"] == [0]
    assert [vital["name"] for vital in found["vital"]][:2] == ["loss", "learning rate"]
    quantities = {quantity["name"]: quantity for quantity in found["quantities"]}
    assert quantities["gradient"]["num_targets"] == 10
    assert quantities["gradient"]["steps"] == 60
    assert quantities["gradient"]["default_statistic"] == "norm"
    assert "absmax" in quantities["gradient"]["statistics"]
    assert quantities["scalar"]["statistics"] == ["value"]
    assert found["incidents"][0]["rule"] == "non_finite"
    assert found["incidents"][0]["step"] == 45
    told = zlib.crc32(vario.open_run(folder / "deeper" / "broken").id.encode())
    assert found["cursor"] == f"0.59.{len(found['incidents'])}.{told}"


def test_a_heat_map_has_the_numbers_of_the_series_and_flags_what_is_bad(client, folder):
    answer = client.ask("/api/heat", run="deeper/broken", quantity="gradient", statistic="norm")
    head, values, flags = heat_of(answer.body)
    assert answer.headers["content-type"] == "application/octet-stream"
    run = vario.open_run(folder / "deeper" / "broken")
    assert head["first"] == head["last"] == list(range(60))
    assert sorted(head["targets"]) == sorted(run.targets("gradient"))
    row = head["targets"].index("head.weight")
    series = run.series("head.weight", "gradient", "norm")
    np.testing.assert_allclose(values[row, :45], series.values[:45], rtol=1e-6)
    assert np.isnan(values[row, 45:]).all()
    assert set(flags[:, :45].ravel()) == {1}
    assert set(flags[:, 45:].ravel()) == {3}
    assert head["low"] == pytest.approx(np.nanmin(values[values > 0]))
    assert head["high"] == pytest.approx(np.nanmax(values))


def test_a_heat_map_in_json_says_the_same(client):
    head, values, flags = heat_of(client.ask("/api/heat", run="deeper/broken", rows=3, columns=7).body)
    found = client.get("/api/heat", run="deeper/broken", rows=3, columns=7, format="json")
    assert {key: found[key] for key in head} == head
    assert (head["rows"], head["columns"], sum(head["groups"])) == (3, 7, 10)
    np.testing.assert_array_equal(np.array(found["values"], np.float32), values)
    assert found["bad"] == np.argwhere(flags & 2).tolist()


def test_a_heat_map_can_be_zoomed_into_and_folded_over_ranks(client, folder):
    asked = {"run": "ranks", "quantity": "gradient", "statistic": "mean", "first": 3, "last": 6, "format": "json"}
    low, high, spread = (
        np.array(client.get("/api/heat", rank=rank, **asked)["values"], np.float64) for rank in ("min", "max", "spread")
    )
    assert client.get("/api/heat", rank="0", **asked)["first"] == [3, 4, 5, 6]
    assert (high > low).all()
    np.testing.assert_allclose(spread, high - low, rtol=1e-4)


def test_curves_come_in_columns_one_for_each_series_and_rank(client, folder):
    found = client.get("/api/series", run="deeper/broken", series=["scalar|loss|value", "gradient|head.bias|norm"])
    loss, norm = found["curves"]
    assert loss["is_whole"]
    assert (
        loss["last"][:45] == vario.open_run(folder / "deeper" / "broken").series("loss", "scalar").values[:45].tolist()
    )
    assert loss["last"][45:] == [None] * 15
    assert loss["bad"] == [False] * 45 + [True] * 15
    assert norm["statistic"] == "norm"
    each = client.get("/api/series", run="ranks", series="scalar|forward_seconds|", rank="each")["curves"]
    assert [(curve["rank"], curve["last"][0]) for curve in each] == [(0, 0.1), (1, 0.2)]


def test_curves_of_several_runs_lie_over_each_other(client):
    found = client.get("/api/series", run=["healthy", "deeper/broken"], series="scalar|loss|value", points=10)
    assert [curve["run"] for curve in found["curves"]] == ["healthy", "deeper/broken"]
    assert all(len(curve["steps"]) == 10 and not curve["is_whole"] for curve in found["curves"])


@pytest.mark.parametrize("format", ["csv", "arrow"])
def test_series_can_be_had_whole_as_a_table(client, folder, format):
    answer = client.ask("/api/series", run="deeper/broken", series="scalar|loss|value", points=5, format=format)
    is_csv = format == "csv"
    table = csv.read_csv(io.BytesIO(answer.body)) if is_csv else pa.ipc.open_stream(answer.body).read_all()
    values = np.array([np.nan if value is None else value for value in table.column("value").to_pylist()])
    np.testing.assert_array_equal(values, vario.open_run(folder / "deeper" / "broken").series("loss", "scalar").values)
    assert answer.headers["content-disposition"] == f'attachment; filename="series.{format}"'


def test_a_table_has_every_step_of_a_run_that_charts_show_by_its_rollups(serve, tmp_path):
    write_rolled_up(tmp_path / "long", range(1500))
    run = vario.open_run(tmp_path / "long")
    with serve(tmp_path) as client:
        asked = {"run": "long", "series": "gradient|layers.1.weight|norm"}
        assert not client.get("/api/series", **asked)["curves"][0]["is_whole"]
        whole = csv.read_csv(io.BytesIO(client.ask("/api/series", **asked, format="csv").body))
        part = csv.read_csv(io.BytesIO(client.ask("/api/series", **asked, format="csv", first=700, last=702).body))
    series = run.series("layers.1.weight", "gradient", "norm")
    assert whole.column("step").to_pylist() == series.steps.tolist()
    np.testing.assert_array_equal(whole.column("value").to_numpy(), series.values)
    assert part.column("step").to_pylist() == [700, 701, 702]


def test_a_run_or_rank_without_a_series_is_left_out_where_another_has_it(serve, tmp_path):
    for rank, names in enumerate((made_runs.NAMES, made_runs.NAMES[:2])):
        frames = [made_runs.record(step, made_runs.frame(step, targets=names, rank=rank)) for step in range(4)]
        made_runs.write_run(tmp_path / "two", frames, rank=rank, world_size=2)
    made_runs.write_run(tmp_path / "other", [made_runs.record(step, **{"train/loss": 1.0}) for step in range(4)])
    with serve(tmp_path) as client:

        def curves(**asked):
            return [(found["run"], found["rank"]) for found in client.get("/api/series", **asked)["curves"]]

        assert curves(run=["two", "other"], series="scalar|loss|value") == [("two", "all")]
        assert curves(run="two", series="gradient|head.weight|norm", rank="each") == [("two", 0)]
        refused = client.refused("/api/series", run=["two", "other"], series=["scalar|loss|value", "scalar|lost|value"])
        assert "unknown 'lost'. Did you mean 'loss'?" in refused["error"]


def test_more_points_than_are_sent_at_once_are_refused(client, monkeypatch):
    monkeypatch.setattr(charts, "MOST_POINTS", 119)
    asked = {"run": "healthy", "format": "csv"}
    series = ["scalar|loss|value", "gradient|head.weight|norm"]
    assert client.ask("/api/series", **asked, series=series[:1]).status == 200
    assert client.ask("/api/series", **asked, series=series, last=58).status == 200
    refused = client.refused("/api/series", **asked, series=series)
    assert refused["key"] == "series"
    assert "120 points requested, but at most 119" in refused["error"]


def test_targets_are_found_by_words(client):
    found = client.get("/api/targets", run="healthy", quantity="weight", search="BLOCKS bias")
    assert found["targets"] == [f"blocks.{number}.0.bias" for number in range(3)]
    assert client.get("/api/targets", run="healthy", quantity="weight", limit=1)["total"] == 10
    assert client.get("/api/targets", run="healthy", quantity="weight", search="blocks.*.bias")["total"] == 3
    assert client.get("/api/targets", run="healthy", quantity="weight", search="*.bia")["total"] == 0


def test_what_changed_lately_comes_with_its_words(client):
    found = client.get("/api/changes", run="deeper/broken", last=15, top=3)
    assert found["changes"][0]["kind"] == "non-finite"
    assert found["changes"][0]["text"].startswith("NaN or Inf, was ")
    assert len(found["changes"]) == 3
    assert found["num_series"] > 50


def test_alerts_are_the_recorded_ones_with_the_first_cause(client, folder):
    found = client.get("/api/alerts", run="deeper/broken")
    assert found["source"] == "stored"
    assert len(found["alerts"]) == len(vario.open_run(folder / "deeper" / "broken").alerts)
    assert "step 45" in found["diagnosis"]["paragraph"]
    assert found["diagnosis"]["chain"][0]["step"] == 45
    assert len(found["diagnosis"]["chain"]) > 2
    incident = found["incidents"][0]
    assert incident["series"].startswith("activation|")
    assert client.ask("/api/series", run="deeper/broken", series=incident["series"]).status == 200
    assert client.get("/api/alerts", run="healthy")["diagnosis"] is None


def test_rules_can_be_replayed_over_a_run_that_stored_no_alerts(serve, tmp_path):
    little_trainings.train(tmp_path / "quiet", steps=50, nan_step=30, rules=False)
    with serve(tmp_path) as client:
        assert client.get("/api/alerts", run="quiet")["incidents"] == []
        found = client.get("/api/alerts", run="quiet", replay="1")
    assert found["source"] == "replay"
    assert found["incidents"][0]["step"] == 30


def test_ranks_stand_beside_each_other_and_the_slow_one_is_named(client, serve, tmp_path):
    found = client.get("/api/ranks", run="ranks")
    assert [rank["state"] for rank in found["ranks"]] == ["finished", "finished"]
    assert [curve["rank"] for curve in found["curves"]] == [0, 1]
    # Twelve steps are too few to tell.
    assert (found["verdict"]["kind"], found["verdict"]["slow"]) == ("unknown", [])
    assert found["desync"] is None
    own = client.get("/api/ranks", run="ranks", quantity="gradient", target="head.weight", statistic="mean")
    assert own["curves"][0]["last"] != own["curves"][1]["last"]
    assert client.get("/api/ranks", run="healthy")["verdict"] is None
    write_ranks(tmp_path / "longer", steps=60)
    with serve(tmp_path) as longer:
        verdict = longer.get("/api/ranks", run="longer")["verdict"]
    [slow] = verdict["slow"]
    assert (slow["rank"], slow["target"], slow["since"]) == (1, "forward_seconds", 0)
    assert slow["lost_seconds"] == pytest.approx(0.1)
    assert slow["share"] == pytest.approx(1 / 3)
    assert [one["forward_seconds"] for one in verdict["times"]] == pytest.approx([0.1, 0.2])
    assert [one["rest_seconds"] for one in verdict["times"]] == pytest.approx([0.2, 0.1])
    assert verdict["times"][0]["communication_seconds"] is None


def test_two_runs_are_compared_layer_by_layer(serve, tmp_path):
    little_trainings.train(tmp_path / "a", steps=40)
    little_trainings.train(tmp_path / "b", steps=40, fault=little_trainings.scale_a_weight, fault_step=20)
    with serve(tmp_path) as client:
        found = client.get("/api/compare", a="a", b="b")
        heat = client.get("/api/compare/heat", a="a", b="b", quantity="weight", statistic="rms", format="json")
        head, values, _ = heat_of(
            client.ask("/api/compare/heat", a="a", b="b", quantity="weight", statistic="mean").body
        )
    assert found["divergence"]["step"] == 20
    assert found["text"].startswith("They diverge at step 20")
    assert found["differences"]
    assert heat["difference"] == "ratio"
    row = heat["values"][heat["targets"].index("blocks.1.0.weight")]
    assert row[:20] == [0.0] * 20
    assert row[20] == pytest.approx(np.log10(1.2), abs=0.01)
    assert head["difference"] == "minus"
    assert (values[:, :20] == 0).all()


def test_the_model_has_its_shares_and_its_newest_numbers(client, folder):
    found = client.get("/api/model", run="healthy")
    modules = {module["name"]: module for module in found["modules"]}
    head, root = modules["head"], modules["root"]
    assert head["parameters"][0] == {
        "name": "head.weight",
        "shape": [1, 16],
        "dtype": "float32",
        "trainable": True,
        "shared_with": [],
        "count": 16,
        "latest": head["parameters"][0]["latest"],
    }
    assert (head["own_parameters"], head["depth"]) == (17, 1)
    assert root["num_parameters"] == found["num_parameters"] == 8 * 16 + 16 + 3 * (16 * 16 + 16) + 17
    assert head["share"] == pytest.approx(17 / root["num_parameters"])
    run = vario.open_run(folder / "healthy")
    latest = run.series("head.weight", "gradient", "norm").values[-1]
    assert head["parameters"][0]["latest"]["gradient|norm"] == pytest.approx(latest)
    norms = [run.series(name, "gradient", "norm").values[-1] for name in run.targets("gradient")]
    assert root["latest"]["gradient|norm"] == pytest.approx(np.linalg.norm(norms))
    assert head["latest"]["activation|rms"] == pytest.approx(run.series("head", "activation", "rms").values[-1])
    assert found["memory"]["measured"] > 0


def test_settings_say_how_it_was_started(client):
    found = client.get("/api/settings", run="healthy")
    assert found["config"]["quantities"] == little_trainings.QUANTITIES
    assert found["versions"]["vario"] == vario.__version__
    assert (found["engine"], found["parts_off"], found["dropped_steps"]) == ("plain", [], 0)


def test_what_merged_values_leave_out_is_among_the_parts_that_are_off(serve, tmp_path):
    path = tmp_path / "experts"
    for rank in range(2):
        store = made_runs.small_parts()
        structure = {"modules": [], "parameters": [{"name": name, "shape": [4, 4]} for name in made_runs.NAMES]}
        store.open(made_runs.header(path, rank=rank, world_size=2, structure=structure))
        store.write(made_runs.record(0, made_runs.frame(0, rank=rank)))
        store.close("crashed" if rank else "finished", "ValueError: no more text" if rank else None)
    with serve(tmp_path) as client:
        (part,) = client.get("/api/settings", run="experts")["parts_off"]
        home = client.get("/api/run", run="experts")
    assert part["part"] == "gradient of all ranks"
    assert "ranks 0, 1 have different tensors with one name" in part["error"]
    assert (home["parts_off"], home["failed_rank"], home["error"]) == (1, 1, "ValueError: no more text")


def test_a_served_folder_may_be_a_run_itself(serve, folder):
    with serve(folder / "healthy") as client:
        assert [row["run"] for row in client.get("/api/runs")["runs"]] == ["."]
        assert client.get("/api/run", run=".")["name"] == "healthy"


def test_a_run_that_grows_is_read_anew_and_one_that_stands_is_not(serve, tmp_path):
    little_trainings.train(tmp_path / "run", steps=5)
    with serve(tmp_path) as client:
        assert client.get("/api/runs")["runs"][0]["step"] == 4
        assert client.get("/api/heat", run="run", format="json")["columns"] == 5
        little_trainings.train(tmp_path / "run", steps=3, resume=True)
        assert client.get("/api/heat", run="run", format="json")["columns"] == 8
        assert client.get("/api/runs")["runs"][0]["step"] == 7


def test_unknown_names_are_refused_with_the_nearest_one(client):
    refused = client.refused("/api/heat", run="healthy", quantity="gradiant")
    assert refused == {"error": "quantity: unknown 'gradiant'. Did you mean 'gradient'?", "key": "quantity"}
    assert "Did you mean 'norm'?" in client.refused("/api/heat", run="healthy", statistic="nrom")["error"]
    assert client.refused("/api/heat", run="healthy", statistik="norm")["key"] == "statistik"
    assert "'healthy'" in client.refused("/api/run", status=404, run="helthy")["error"]
    assert client.refused("/api/series", run="healthy", series="scalar|los|value")["key"] == "target"


@pytest.mark.parametrize(
    ("path", "parameters", "key"),
    [
        ("/api/run", {}, "run"),
        ("/api/run", {"run": ["healthy", "healthy"]}, "run"),
        ("/api/heat", {"run": "healthy", "rows": 0}, "rows"),
        ("/api/heat", {"run": "healthy", "rows": "1e3"}, "rows"),
        ("/api/heat", {"run": "healthy", "columns": 10**9}, "columns"),
        ("/api/heat", {"run": "healthy", "rank": "7"}, "rank"),
        ("/api/heat", {"run": "healthy", "rank": "most"}, "rank"),
        ("/api/heat", {"run": "healthy", "first": -1}, "first"),
        ("/api/heat", {"run": "healthy", "format": "xml"}, "format"),
        ("/api/heat", {"run": "healthy", "quantity": "a\0b"}, "quantity"),
        ("/api/series", {"run": "healthy"}, "series"),
        ("/api/series", {"run": "healthy", "series": "loss"}, "series"),
        ("/api/series", {"run": "healthy", "series": ["scalar|loss|value"] * 513}, "series"),
        ("/api/alerts", {"run": "healthy", "replay": "yes"}, "replay"),
        ("/api/changes", {"run": "healthy", "last": 0}, "last"),
        ("/api/live", {"run": "healthy", "cursor": "no"}, "cursor"),
        ("/api/live", {"quantity": "gradient"}, "run"),
    ],
)
def test_a_parameter_that_cannot_be_used_is_named(client, path, parameters, key):
    assert client.refused(path, **parameters)["key"] == key


def test_a_damaged_run_is_left_out_of_the_list_and_says_why(serve, tmp_path):
    little_trainings.train(tmp_path / "good", steps=3)
    little_trainings.train(tmp_path / "bad", steps=3)
    (tmp_path / "bad" / "run.json").write_text("{")
    little_trainings.train(tmp_path / "torn", steps=3)
    for part in (tmp_path / "torn" / "rank0" / "gradient").iterdir():
        part.write_bytes(b"not parquet")
    with serve(tmp_path) as client:
        found = client.get("/api/runs")
        assert {row["name"] for row in found["runs"]} >= {"good"}
        assert any(left["path"] == "bad" and "run.json" in left["error"] for left in found["left_out"])
        assert "run.json" in client.refused("/api/run", run="bad")["error"]
        assert "not readable as Parquet" in client.refused("/api/heat", run="torn", quantity="gradient")["error"]


def test_the_description_lists_every_address_and_the_page_is_made_from_it(client):
    described = client.get("/openapi.json")
    assert "/api/live" in described["paths"]
    names = [parameter["name"] for parameter in described["paths"]["/api/heat"]["get"]["parameters"]]
    assert names == ["run", "quantity", "statistic", "rank", "first", "last", "rows", "columns", "search", "format"]
    page = client.ask("/api")
    assert page.headers["content-type"].startswith("text/html")
    text = page.body.decode()
    assert all(path in text for path in described["paths"])
    assert "<script" not in text
    assert "style=" not in text


def test_what_is_not_there_is_said_in_json(client):
    assert "/api" in client.refused("/api/nothing", status=404)["error"]
    assert client.refused("/etc/passwd", status=404)["key"] is None
    assert client.ask("/healthz").body == b"ok"


def test_very_many_runs_are_listed_in_time_and_read_one_after_the_other(folder):
    rows = RunRows(Served(folder), seconds=-1.0)
    first = rows.read()
    assert {row["run"] for row in first["runs"]} == {"healthy", "deeper/broken", "ranks", SCRIPT_NAME}
    assert all(not row["is_read"] and row["loss"] is None and row["started"] > 0 for row in first["runs"])
    whole = rows.read(seconds=60)
    assert all(row["is_read"] and row["step"] is not None for row in whole["runs"])
    assert rows.since(first["cursor"])["runs"] == whole["runs"], "all have changed"
    assert rows.read() == whole, "what was read stays"


def test_the_list_says_of_a_run_what_its_own_page_says(client):
    for row in client.get("/api/runs")["runs"]:
        found = client.get("/api/run", run=row["run"])
        for key in (
            "name",
            "state",
            "started",
            "ended",
            "step",
            "total_steps",
            "progress",
            "world_size",
            "host",
            "error",
        ):
            assert row[key] == found[key], key
        loss = next(vital for vital in found["vital"] if vital["name"] == "loss")
        assert row["loss"] == loss["value"]
        assert row["spark"] == pytest.approx(loss["spark"], nan_ok=True)


def test_only_so_many_bytes_of_answers_are_kept():
    cache = AnswerCache(most_bytes=1000)
    for number in range(20):
        cache.put(number, Answer(bytes(100)))
    assert [number for number in range(20) if cache.get(number) is not None] == list(range(10, 20))
    cache.put("large", Answer(bytes(900)))
    assert cache.get("large") is None
