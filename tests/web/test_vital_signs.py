"""What Prometheus reads of a server, parsed by its own package."""

import json
import math
import re
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from web_client import serving

import made_runs
from vario.notices.prometheus import Prometheus
from vario.web.addresses.vital_signs import LIVE, MOST_RUNS, NUMBERS, STATES

TOKEN = "a-token-of-this-test"
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "vario.json"


def parsed(text):
    """Values by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(client, **headers):
    answer = client.ask("/metrics", headers=headers)
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return parsed(answer.body.decode())


def of(found, name, **labels):
    return found.get((f"vario_{name}", *sorted(labels.items())))


@pytest.fixture
def training(tmp_path):
    """A run of two ranks that goes on; one of them has written nothing for long."""
    stores = []
    now = time.time()
    for rank in range(2):
        store = made_runs.small_parts()
        store.open(made_runs.header(tmp_path / "job", rank=rank, world_size=2))
        for step in range(10):
            numbers = {"loss": 1 / (1 + step), "total_steps": 40.0, "grad_norm": 2.5, "samples_per_second": 64.0}
            store.write(made_runs.record(step, time=now - 100 + step, overhead=0.01, **numbers))
        stores.append(store)
    yield tmp_path
    for store in stores:
        store.close("finished", None)


def test_a_run_that_trains_has_all_its_vital_signs(training):
    with serving(training) as client:
        found = read(client)
    assert of(found, "run_state", run="job", state="running") == 1
    assert sum(of(found, "run_state", run="job", state=state) for state in STATES) == 1
    assert of(found, "runs", state="running") == 1
    expected = {"last_step": 9, "progress_ratio": 0.25, "loss": 0.1, "steps_per_second": 1.0, "samples_per_second": 64}
    for name, value in {**expected, "gradient_norm": 2.5, "overhead_ratio": 0.01}.items():
        assert of(found, name, run="job") == pytest.approx(value), name
    assert 90 < of(found, "seconds_since_last_step", run="job") < 900
    assert of(found, "ranks", run="job", state="writing") == 2
    assert of(found, "ranks", run="job", state="stalled") == 0
    assert {name for name, _ in NUMBERS} <= {key[0].removeprefix("vario_") for key in found}


def test_runs_that_ended_have_states_incidents_and_a_loss_that_may_be_nan(folder):
    with serving(folder) as client:
        found = read(client)
    assert of(found, "run_state", run="deeper/broken", state="finished") == 1
    assert of(found, "run_incidents", run="deeper/broken", severity="page") == 1
    assert of(found, "run_incidents", run="healthy", severity="page") == 0
    assert math.isnan(of(found, "loss", run="deeper/broken"))
    assert of(found, "samples_per_second", run="healthy") > 0
    assert of(found, "seconds_since_last_step", run="healthy") is None
    assert not any(key[0] == "vario_ranks" for key in found)


def test_the_token_is_a_bearer_and_without_it_nothing_is_told(folder):
    with serving(folder, token=TOKEN) as client:
        assert client.ask("/metrics").status == 401
        assert client.ask("/metrics", headers={"Authorization": "Bearer wrong"}).status == 401
        assert (
            client.ask("/metrics", headers={"Authorization": f"Bearer {TOKEN}", "Host": "evil.example"}).status == 403
        )
        assert read(client, Authorization=f"Bearer {TOKEN}")
        assert client.ask("/metrics", token=TOKEN).status == 200


def test_however_many_runs_there_are_the_number_of_series_is_bounded(tmp_path):
    for number in range(MOST_RUNS + 10):
        store = made_runs.small_parts()
        store.open(made_runs.header(tmp_path / f"run{number:03}", started=1000.0 + number))
        store.write(made_runs.record(0, loss=1.0))
        # The oldest goes on, so it is told of all the same.
        if number:
            store.close("finished", None)
    with serving(tmp_path) as client:
        client.get("/api/table")  # until then runs may still be read
        found = read(client)
    told = {dict(key[1:])["run"] for key in found if "run" in dict(key[1:])}
    assert len(told) == MOST_RUNS
    assert {"run000", f"run{MOST_RUNS + 9:03}"} <= told
    assert "run001" not in told
    assert len(found) <= 19 * MOST_RUNS + len(STATES) + 1
    assert sum(of(found, "runs", state=state) for state in STATES) == MOST_RUNS + 10


def test_odd_names_are_labels(tmp_path):
    name = 'a "b\nc'
    store = made_runs.small_parts()
    store.open(made_runs.header(tmp_path / name))
    store.write(made_runs.record(3, loss=1.0))
    store.close("finished", None)
    with serving(tmp_path) as client:
        assert of(read(client), "last_step", run=name) == 3


def test_a_damaged_run_is_left_out_and_others_are_told_of(tmp_path):
    for name in ("damaged", "whole"):
        store = made_runs.small_parts()
        store.open(made_runs.header(tmp_path / name))
        store.write(made_runs.record(3, loss=1.0))
        store.close("finished", None)
    (tmp_path / "damaged" / "run.json").write_text("{ not JSON")
    with serving(tmp_path) as client:
        found = read(client)
    assert of(found, "last_step", run="whole") == 3
    assert of(found, "last_step", run="damaged") is None


def test_the_notice_has_names_of_the_same_scheme(tmp_path, folder):
    notice = Prometheus(str(tmp_path / "v.prom"))
    notice.refresh("healthy", 59)
    found = parsed((tmp_path / "v.prom").read_text())
    with serving(folder) as client:
        told = read(client)
    key = ("vario_last_step", ("run", "healthy"))
    assert found[key] == told[key] == 59


def targets(panels):
    for panel in panels:
        yield from ((panel, target) for target in panel.get("targets", ()))
        yield from targets(panel.get("panels", ()))


def test_the_dashboard_for_grafana_asks_only_for_what_is_told(training):
    with serving(training) as client:
        names = {key[0] for key in read(client)}
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf8"))
    asked = [target["expr"] for _, target in targets(dashboard["panels"])]
    asked += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    used = {name for text in asked for name in re.findall(r"vario_\w+", text)}
    assert used <= names
    assert {f"vario_{name}" for name, _ in NUMBERS} <= used
    assert LIVE[0] == "running"


def test_the_dashboard_for_grafana_is_put_together_rightly():
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf8"))
    panels = dashboard["panels"]
    assert dashboard["id"] is None, "Grafana gives it a number"
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {target["datasource"]["uid"] for _, target in targets(panels)} == {"${source}"}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] in range(25 - place["w"])
        others = [other["gridPos"] for other in panels if other is not panel]
        assert not any(overlap(place, other) for other in others), panel["title"]


def overlap(one, other):
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in ("xw", "yh"))
