"""Numbers that are forwarded while a run is recorded, read back with the real packages."""

import importlib.util
import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import made_runs
import vario
from vario.backends.numpy import NumpyModel
from vario.config import Config
from vario.core.errors import ConfigError, MissingExtra
from vario.sinks.live.live_sink import LiveSink
from vario.sinks.live.trackio import Trackio
from vario.training.monitor import Monitor

HERE = Path(__file__).parent
SERIES = ["loss", "eval/*", "gradient|*.w|norm"]
EXPECTED = {
    "loss": {step: 1 / (step + 1) for step in range(12)},
    "eval/acc": {7: 0.5},
    "gradient/layer.w/norm": {step: float(2 * step) for step in range(12)},
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(live, steps=12, **options):
    weights = {"layer.w": np.zeros(4), "layer.b": np.zeros(2)}
    model = NumpyModel(weights)
    with vario.watch(model, name="run", every=1, params={"lr": 0.1}, live=live, **options) as monitor:
        for step in range(steps):
            model.backward_ended({"layer.w": np.full(4, float(step)), "layer.b": np.ones(2)})
            model.update_ended()
            monitor.log(loss=1 / (step + 1))
            if step == 7:
                monitor.log(**{"eval/acc": 0.5})
    return monitor


class Kept(LiveSink):
    """A tool that keeps what it gets; it may fail, or hang."""

    name = "kept"
    options = {"color": (str,)}  # noqa: RUF012

    def __init__(self, options=None, fails="", held=None):
        super().__init__(options)
        self.calls, self.got, self.fails, self.held = [], [], fails, held

    def _did(self, what):
        self.calls.append((what, threading.current_thread().name))
        if self.held is not None:
            self.held.wait()
        if self.fails == what:
            raise RuntimeError("no network")

    def start(self):
        self._did("start")

    def send(self, batches):
        self._did("send")
        self.got += [(batch.step, dict(batch.values)) for batch in batches]

    def end(self, state):
        self._did(state)


def feed(sink, records, **changes):
    sink.open(made_runs.header("run", **changes))
    for record in records:
        sink.write(record)
    sink.close("finished", None)
    return sink.got


def test_chosen_numbers_are_passed_on_with_their_steps():
    sink = Kept({"series": ["loss", "gradient|head.*|norm"], "seconds": 0})
    got = feed(sink, [made_runs.record(step, loss=step, other=1) for step in range(4)])
    assert [step for step, _ in got] == [0, 1, 2, 3]
    assert got[2][1].keys() == {"loss", "gradient/head.weight/norm"}
    norm = np.linalg.norm(made_runs.tensor(2, "head.weight", 0, 0))
    assert got[2][1] == {"loss": 2, "gradient/head.weight/norm": pytest.approx(norm)}
    assert [what for what, _ in sink.calls if what != "send"] == ["start", "finished"]
    assert {thread for _, thread in sink.calls} == {"vario-live-kept"}


def test_plain_numbers_are_the_default_and_micro_steps_are_merged():
    first, second = (made_runs.frame(0, targets=["head.weight"], micro_step=number) for number in (0, 1))
    assert feed(Kept({"seconds": 0}), [made_runs.record(0, first, a=1, b=2)]) == [(0, {"a": 1, "b": 2})]
    got = feed(Kept({"series": ["gradient|*|count"]}), [made_runs.record(0, first, second)])
    assert got == [(0, {"gradient/head.weight/count": 2 * made_runs.tensor(0, "head.weight", 0, 0).size})]


def test_a_rate_keeps_the_latest_of_each_number_and_loses_no_rare_one():
    records = [made_runs.record(step, **({"loss": step} if step != 3 else {"eval": 9})) for step in range(8)]
    got = feed(Kept({"every": 5, "seconds": 0}), records)
    assert got == [(0, {"loss": 0}), (3, {"eval": 9}), (5, {"loss": 5}), (7, {"loss": 7})]


def test_only_the_leading_rank_passes_on():
    assert feed(Kept(), [made_runs.record(0)], rank=1, world_size=2) == []
    config = {"statistics": made_runs.STATISTICS, "ranks": [1, 2]}
    assert feed(Kept(), [made_runs.record(0)], rank=1, world_size=3, config=config) != []


def test_there_is_a_limit_to_the_number_of_series(monkeypatch, caplog):
    monkeypatch.setattr("vario.sinks.live.chosen.MOST_SERIES", 3)
    got = feed(Kept({"seconds": 0}), [made_runs.record(step, **{f"n{n}": n for n in range(9)}) for step in range(2)])
    assert [len(values) for _, values in got] == [3, 3]
    assert caplog.text.count("only the first 3 series are forwarded") == 1


def test_a_slow_tool_gets_fewer_steps_and_nobody_waits(monkeypatch, caplog):
    monkeypatch.setattr("vario.sinks.live.live_sink.MOST_WAITING", 4)
    monkeypatch.setattr("vario.sinks.live.live_sink.CLOSE_SECONDS", 0.0)
    held = threading.Event()
    sink = Kept({"seconds": 0}, held=held)
    feed(sink, [made_runs.record(step) for step in range(50)])
    assert "live.kept can't keep up" in caplog.text
    assert "live.kept takes too long" in caplog.text
    held.set()
    sink._thread.join()
    assert [step for step, _ in sink.got] == [46, 47, 48, 49]


@pytest.mark.parametrize("fails", ["start", "send", "finished"])
def test_a_tool_that_fails_never_stops_training(fails, caplog):
    sink = Kept({"seconds": 0}, fails=fails)
    weights = {"w": np.zeros(2)}
    model = NumpyModel(weights)
    monitor = Monitor(model, None, Config(name="run"), sinks={"kept": sink})
    for step in range(30):
        model.backward_ended({"w": np.ones(2)})
        model.update_ended()
        monitor.log(loss=step)
        monitor.wait()
        if step == 9 and fails != "finished":
            sink._thread.join()  # the next step finds out
    monitor.close()
    run = vario.open_run("vario_runs/run")
    assert (run.state, len(run.series("loss", "scalar"))) == ("finished", 30)
    assert "no network" in caplog.text
    if fails != "finished":
        assert [off.part for off in run.parts_off] == ["sink kept"]


@pytest.mark.parametrize(
    ("live", "words"),
    [
        (3, "live: expected names or a table such as"),
        ({"tensorboard": 3}, "live.tensorboard: expected a table"),
        (["tensorbord"], "live: unknown 'tensorbord'. Did you mean 'tensorboard'?"),
        (["store"], "live: unknown 'store'"),
        ({"tensorboard": {"evry": 3}}, "live.tensorboard: unknown 'evry'. Did you mean 'every'?"),
        ({"tensorboard": {"every": 0}}, "expected `every` of at least 1"),
        ({"tensorboard": {"every": "3"}}, "live.tensorboard.every: expected int, got '3'"),
        ({"tensorboard": {"seconds": True}}, "live.tensorboard.seconds: expected int or float, got True"),
        ({"tensorboard": {"series": ["a|b"]}}, "expected plain numbers or QUANTITY|TARGET|STATISTIC, got 'a|b'"),
        ({"tensorboard": {"series": ["gradient|*|nrom"]}}, "unknown 'nrom'. Did you mean 'norm'?"),
        ({"tensorboard": {"series": ["re:("]}}, "is not a regular expression"),
    ],
)
def test_a_wrong_option_raises_before_the_first_step(live, words):
    with pytest.raises(ConfigError) as raised:
        train(live)
    assert words in str(raised.value)


def test_a_statistic_that_is_not_recorded_is_refused():
    with pytest.raises(ConfigError, match=r"live\.tensorboard\.series: 'zeros' is not recorded"):
        train({"tensorboard": {"series": ["gradient|*|zeros"]}}, statistics=["norm"])


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_without_its_package_a_tool_names_its_install_line(name, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda package: None)
    with pytest.raises(MissingExtra, match=rf"live.{name} needs an extra: pip install 'vario\[{name}\]'"):
        train([name])


def test_a_folder_of_the_same_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "trackio").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    monkeypatch.setattr("sys.path_importer_cache", {})
    with pytest.raises(MissingExtra, match="trackio"):
        Trackio({})


def test_options_are_stored_without_credentials():
    train({"tensorboard": {"directory": "http://me:secret@host/x"}}, steps=1)
    assert "secret" not in (vario.open_run("vario_runs/run").path / "run.json").read_text()
    assert vario.open_run("vario_runs/run").config["live"] == {"tensorboard": {"directory": "http://***@host/x"}}


def test_the_training_is_the_same_and_so_is_the_run():
    train({"tensorboard": {"seconds": 0}}, directory="a")
    train({}, directory="b")
    rows = [vario.open_run(f"{place}/run").to_arrow("gradient").to_pylist() for place in ("a", "b")]
    assert rows[0] == rows[1]


# The real packages


def test_tensorboard_reads_what_is_written():
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train({"tensorboard": {"series": SERIES, "seconds": 0}})
    read = accumulators.EventAccumulator("vario_runs/tensorboard/run").Reload()
    found = {tag: {event.step: event.value for event in read.Scalars(tag)} for tag in read.Tags()["scalars"]}
    assert found == {name: pytest.approx(values) for name, values in EXPECTED.items()}
    assert [run.name for run in vario.list_runs("vario_runs")] == ["run"]


def wandb_records(path):
    """The records of a file of W&B: a log of blocks, as LevelDB has it."""
    from wandb.proto import wandb_internal_pb2

    content, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or its last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def train_apart(live, more="", **environment):
    """The same training in a process of its own; gives what it prints."""
    script = f"import sys; sys.path[:0] = sys.argv[1:]\nfrom test_live_sinks import train\ntrain({live!r})\n{more}"
    folders = [str(HERE), str(HERE.parent), str(HERE.parents[1] / "src")]
    command = [sys.executable, "-c", script, *folders]
    told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_wandb_keeps_them_offline(tmp_path):
    if importlib.util.find_spec("wandb") is None:
        pytest.skip("wandb is not installed: pip install 'vario[wandb]'")
    # A process of wandb's writes the file; it is whole when ours has ended.
    live = {"wandb": {"mode": "offline", "project": "p", "series": SERIES, "seconds": 0}}
    train_apart(live, WANDB_ERROR_REPORTING="false")
    (path,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    records = list(wandb_records(path))
    found = {name: {} for name in EXPECTED}
    for record in records:
        row = {(item.key or "/".join(item.nested_key)): json.loads(item.value_json) for item in record.history.item}
        for name in found.keys() & row.keys():
            found[name][row["_step"]] = row[name]
    assert found == {name: pytest.approx(values) for name, values in EXPECTED.items()}
    run = next(record.run for record in records if record.HasField("run"))
    assert (run.display_name, run.project) == ("run", "p")
    assert {"lr": "0.1"}.items() <= {item.key: item.value_json for item in run.config.update}.items()


@pytest.mark.filterwarnings("ignore")  # its database warns of what it uses itself
def test_mlflow_keeps_them_in_a_database(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install 'vario[mlflow]'")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    train({"mlflow": {"tracking_uri": uri, "experiment": "e", "series": SERIES, "seconds": 0}})
    client = mlflow.MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("e").experiment_id])
    found = {
        name: {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, name)}
        for name in run.data.metrics
    }
    assert found == EXPECTED
    assert (run.info.run_name, run.info.status, run.data.params["lr"]) == ("run", "FINISHED", "0.1")


def test_trackio_keeps_them_in_its_folder(tmp_path):
    if importlib.util.find_spec("trackio") is None:
        pytest.skip("trackio is not installed: pip install 'vario[trackio]'")
    # trackio reads where its folder is when it is imported.
    read = "import json\nfrom trackio.sqlite_storage import SQLiteStorage\n"
    read += "print('FOUND', json.dumps(SQLiteStorage.get_logs('p', 'run')))\n"
    live = {"trackio": {"project": "p", "series": SERIES, "seconds": 0}}
    rows = json.loads(train_apart(live, read, TRACKIO_DIR=str(tmp_path / "trackio")).partition("FOUND ")[2])
    found = {name: {row["step"]: row[name] for row in rows if name in row} for name in EXPECTED}
    assert found == EXPECTED
