"""News of a run while it trains: each row once, from the cursor on, over a real connection."""

import json
import shutil
from contextlib import contextmanager
from urllib.parse import urlencode

import pytest
import torch

import little_trainings
import made_runs
import vario
from vario.web.live import streams as live_streams
from vario.web.live.watching import RunLooks
from vario.web.served import Served


class Stream:
    """An open event stream; reading waits for what comes."""

    def __init__(self, client, headers=None, **parameters):
        self._connection = client.connect(timeout=60)
        query = urlencode(parameters, doseq=True)
        self._connection.request("GET", f"/api/live?{query}", headers=headers or {})
        self.response = self._connection.getresponse()
        if self.response.status != 200:
            text = self.response.read()
            self.close()
            raise AssertionError(text)
        assert self.response.headers["content-type"].startswith("text/event-stream")

    def close(self):
        self.response.close()
        self._connection.close()

    def __iter__(self):
        """Events as (kind, id, content), until the stream ends."""
        fields = {}
        for raw in self.response:
            line = raw.decode().rstrip("\n")
            if line.startswith(":"):
                continue
            if line:
                key, _, value = line.partition(": ")
                fields[key] = value
            elif fields:
                strict = json.loads(fields["data"], parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
                yield fields["event"], fields.get("id"), strict
                fields = {}

    def until(self, kind):
        """All events up to the first of a kind."""
        found = []
        for event in self:
            found.append(event)
            if event[0] == kind:
                return found
        raise AssertionError(f"the stream ended without {kind}: {found}")


@pytest.fixture
def listen(request):
    """Open a stream that is closed when the test ends."""

    def opened(client, **parameters):
        stream = Stream(client, **parameters)
        request.addfinalizer(stream.close)
        return stream

    return opened


class Training:
    """A real training that takes its steps when it is told to."""

    def __init__(self, path, **options):
        torch.manual_seed(0)
        self.model = little_trainings.Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.batches = torch.Generator().manual_seed(1)
        quantities = ["gradient", "weight"]
        where = {"directory": str(path.parent), "name": path.name}
        self.monitor = vario.watch(self.model, self.optimizer, quantities=quantities, every=1, **where, **options)

    def steps(self, number, scale=1.0):
        for _ in range(number):
            self.optimizer.zero_grad()
            loss = self.model(scale * torch.randn(4, 8, generator=self.batches)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.monitor.log(loss=loss.item())


@contextmanager
def training(path, **options):
    found = Training(path, **options)
    try:
        yield found
    finally:
        found.monitor.close()


def columns_of(events):
    """Steps, and the numbers of the first row by step, of all heat events."""
    found = {}
    for kind, _, content in events:
        if kind == "heat":
            for step, column in zip(content["steps"], content["values"], strict=True):
                assert step not in found, f"step {step} came twice"
                found[step] = column
    return found


def test_a_run_that_trains_sends_each_step_once_and_says_bye(serve, tmp_path, listen):
    with serve(tmp_path) as client:
        with training(tmp_path / "run") as trained:
            trained.steps(5)
            stream = listen(
                client, run="run", cursor="0.-1.0", quantity="gradient", statistic="norm", series="scalar|loss|value"
            )
            events = stream.until("points")
            trained.steps(5)
            events += stream.until("points")
        events += stream.until("bye")
    run = vario.open_run(tmp_path / "run")
    columns = columns_of(events)
    assert sorted(columns) == list(range(10))
    order = next(content["order"] for kind, _, content in events if kind == "heat")
    for row, name in enumerate(order):
        expected = run.series(name, "gradient", "norm").values
        assert [columns[step][row] for step in range(10)] == pytest.approx(expected.tolist())
    points = [
        point
        for kind, _, content in events
        if kind == "points"
        for curve in content["curves"]
        for point in zip(curve["steps"], curve["values"], strict=True)
    ]
    loss = run.series("loss", "scalar")
    assert points == list(zip(loss.steps.tolist(), loss.values.tolist(), strict=True))
    progress = [content for kind, _, content in events if kind == "progress"]
    assert (progress[0]["state"], progress[-1]["state"], progress[-1]["step"]) == ("running", "finished", 9)
    assert events[-1][0] == "bye"
    assert events[-1][2] == {"state": "finished"}


def test_the_rows_are_those_of_the_heat_map(serve, folder, listen, client):
    stream = listen(client, run="deeper/broken", cursor="0.40.0", quantity="gradient")
    heat = next(content for kind, _, content in stream.until("bye") if kind == "heat")
    shown = client.get("/api/heat", run="deeper/broken", quantity="gradient", format="json")
    assert heat["order"] == shown["targets"]
    assert heat["steps"] == list(range(41, 60))
    assert heat["values"][0] == [row[41] for row in shown["values"]]
    assert sorted([column + 41, row] for row, column in heat["bad"]) == sorted(
        [step, row] for row, step in shown["bad"]
    )


def test_a_stream_goes_on_from_the_last_event_a_page_has_seen(client, listen):
    first = listen(client, run="healthy", cursor="0.10.0", series="scalar|loss|value").until("bye")
    again = listen(
        client, run="healthy", headers={"Last-Event-ID": "0.49.0"}, cursor="0.10.0", series="scalar|loss|value"
    )
    assert next(content for kind, _, content in first if kind == "points")["curves"][0]["steps"] == list(range(11, 60))
    assert next(content for kind, _, content in again if kind == "points")["curves"][0]["steps"] == list(range(50, 60))
    seen = first[-1][1]
    assert [kind for kind, _, _ in listen(client, run="healthy", headers={"Last-Event-ID": seen})] == [
        "progress",
        "bye",
    ]


def test_an_incident_is_told_when_it_is_found(serve, tmp_path, listen):
    with serve(tmp_path) as client:
        with training(tmp_path / "run") as trained:
            trained.steps(5)
            stream = listen(client, run="run", cursor="0.3.0")
            stream.until("progress")
            trained.steps(1, scale=float("nan"))
            trained.steps(4)
            events = stream.until("incident")
        events += stream.until("bye")
    told = [content for kind, _, content in events if kind == "incident"]
    assert told[0]["rule"] == "non_finite"
    assert told[0]["step"] == 5
    leads = [(content["rule"], content["step"], content["place"]) for content in told]
    assert len(leads) == len(set(leads))


def test_steps_that_a_resume_took_back_reset_a_page(serve, tmp_path, listen):
    little_trainings.train(tmp_path / "run", steps=6)
    with serve(tmp_path) as client:
        cursor = client.get("/api/run", run="run")["cursor"]
        little_trainings.train(tmp_path / "run", steps=3, resume=True, first_step=2)
        events = listen(client, run="run", cursor=cursor, quantity="gradient").until("bye")
    assert [kind for kind, _, _ in events] == ["reset", "progress", "bye"]
    assert events[-1][1].startswith("1.4.0.")


def test_a_page_that_is_far_behind_starts_anew(serve, tmp_path, listen):
    made_runs.write_run(tmp_path / "run", [made_runs.record(step, loss=1.0) for step in (0, 1, 2, 3, 5000)])
    with serve(tmp_path) as client:
        events = listen(client, run="run", cursor="0.3.0", series="scalar|loss|value").until("bye")
    assert [kind for kind, _, _ in events] == ["reset", "progress", "bye"]


def test_a_page_of_very_many_rows_is_sooner_behind(client, listen, monkeypatch):
    monkeypatch.setattr(live_streams, "MOST_CELLS", 100)
    events = listen(client, run="healthy", cursor="0.40.0", quantity="gradient").until("bye")
    assert [kind for kind, _, _ in events] == ["reset", "progress", "bye"]
    events = listen(client, run="healthy", cursor="0.49.0", quantity="gradient").until("bye")
    assert [kind for kind, _, _ in events] == ["progress", "heat", "bye"]


def test_all_pages_of_a_run_share_one_watcher_that_ends_with_the_last(serve, tmp_path, listen):
    with training(tmp_path / "run") as trained, serve(tmp_path) as client:
        trained.steps(4)
        streams = [listen(client, run="run", cursor="0.-1.0", series="scalar|loss|value") for _ in range(6)]
        points = [stream.until("points")[-1][2] for stream in streams]
        assert all(found == points[0] for found in points)
        assert (client.streams.num_open, client.streams.num_watched) == (6, 1)
        for stream in streams:
            stream.close()
        # The server sees that they are gone while it answers something else.
        asked = 0
        while client.streams.num_open and asked < 1000:
            client.ask("/healthz")
            asked += 1
        assert (client.streams.num_open, client.streams.num_watched) == (0, 0)


def test_a_page_of_a_run_that_another_of_its_name_replaced_begins_anew(serve, tmp_path, listen):
    with training(tmp_path / "run") as trained:
        trained.steps(12)
    with serve(tmp_path) as client:
        cursor = client.get("/api/run", run="run")["cursor"]
        again = [kind for kind, _, _ in listen(client, run="run", cursor=cursor).until("bye")]
        assert "reset" not in again
        shutil.rmtree(tmp_path / "run")
        with training(tmp_path / "run") as trained:
            trained.steps(14)
        found = listen(client, run="run", cursor=cursor, quantity="gradient").until("bye")
        assert [kind for kind, _, _ in found] == ["reset", "progress", "bye"]


def test_steps_that_a_resume_took_back_are_not_sent_as_they_were(tmp_path):
    made_runs.write_run(tmp_path / "run", [made_runs.record(step, loss=1.0) for step in range(6)])
    looks = RunLooks(Served(tmp_path), "run")
    looks.look()
    assert looks.curve("scalar|loss|value", "all", 3, 5).last.tolist() == [1.0, 1.0, 1.0]
    records = [made_runs.record(step, loss=2.0) for step in range(3, 6)]
    made_runs.write_run(tmp_path / "run", records, resume=True, first_step=3)
    looks.look()
    assert looks.curve("scalar|loss|value", "all", 3, 5).last.tolist() == [2.0, 2.0, 2.0]


def test_the_list_tells_of_rows_that_changed_and_of_no_others(serve, tmp_path, listen):
    little_trainings.train(tmp_path / "old", steps=3)
    with serve(tmp_path) as client:
        cursor = client.get("/api/runs")["cursor"]
        assert list(listen(client, cursor=cursor, once="1")) == []
        stream = listen(client, cursor=cursor)
        little_trainings.train(tmp_path / "new", steps=3)
        assert {row["name"] for row in stream.until("runs")[-1][2]["runs"]} == {"new"}
        everything = list(listen(client, cursor="of-another.7", once="1"))
        assert {row["name"] for row in everything[0][2]["runs"]} == {"old", "new"}


def test_a_run_that_goes_away_ends_its_stream_with_the_reason(serve, tmp_path, listen):
    with training(tmp_path / "runs" / "run") as trained, serve(tmp_path / "runs") as client:
        trained.steps(3)
        stream = listen(client, run="run", cursor="0.-1.0")
        stream.until("progress")
        (tmp_path / "runs" / "run").rename(tmp_path / "elsewhere")
        assert "no run 'run'" in stream.until("problem")[-1][2]["error"]
        (tmp_path / "elsewhere").rename(tmp_path / "runs" / "run")


def test_a_run_that_is_damaged_while_it_is_watched_ends_its_stream_with_the_reason(serve, tmp_path, listen):
    with training(tmp_path / "run") as trained, serve(tmp_path) as client:
        trained.steps(3)
        stream = listen(client, run="run", cursor="0.-1.0", quantity="gradient")
        stream.until("progress")
        kept = (tmp_path / "run" / "run.json").read_bytes()
        (tmp_path / "run" / "run.json").write_text("{")
        assert "run.json" in stream.until("problem")[-1][2]["error"]
        (tmp_path / "run" / "run.json").write_bytes(kept)
        assert listen(client, run="run", cursor="0.-1.0").until("progress")


@pytest.mark.parametrize(
    ("parameters", "key"),
    [
        ({"quantity": "gradiant"}, "quantity"),
        ({"quantity": "gradient", "statistic": "nrom"}, "statistic"),
        ({"series": "loss"}, "series"),
        ({"rank": "most"}, "rank"),
        ({"run": "helthy"}, "run"),
    ],
)
def test_a_stream_of_what_is_not_there_is_refused_at_once(client, parameters, key):
    asked = {"run": "healthy", **parameters}
    assert client.refused("/api/live", status=404 if key == "run" else 400, **asked)["key"] == key


def test_too_many_open_pages_are_refused(serve, tmp_path, listen, monkeypatch):
    monkeypatch.setattr(live_streams, "MOST_STREAMS", 2)
    with training(tmp_path / "run") as trained, serve(tmp_path) as client:
        trained.steps(2)
        open_streams = [listen(client, run="run", cursor="0.-1.0") for _ in range(2)]
        for stream in open_streams:
            stream.until("progress")
        assert "Close one" in client.refused("/api/live", status=429, run="run")["error"]


def test_a_step_is_sent_when_all_ranks_are_past_it(serve, tmp_path, listen):
    stores = [made_runs.small_parts() for _ in range(2)]
    for rank, store in enumerate(stores):
        store.open(made_runs.header(tmp_path / "run", rank=rank, world_size=2))

    def write(rank, *steps):
        for step in steps:
            stores[rank].write(made_runs.record(step, loss=float(step + 10 * rank)))

    with serve(tmp_path) as client:
        write(0, *range(6))
        write(1, *range(3))
        stream = listen(client, run="run", cursor="0.-1.0", series="scalar|loss|value", quantity="gradient")
        events = stream.until("points")
        assert sorted(columns_of(events)) == [0, 1], "the other rank may still write of its newest step"
        write(1, *range(3, 6))
        events += stream.until("points")
        for store in stores:
            store.close("finished", None)
        events += stream.until("bye")
    assert sorted(columns_of(events)) == list(range(6))
    curves = [content["curves"][0] for kind, _, content in events if kind == "points"]
    values = {step: value for curve in curves for step, value in zip(curve["steps"], curve["values"], strict=True)}
    assert values == {step: step + 5.0 for step in range(6)}
