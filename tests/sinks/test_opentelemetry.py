"""Numbers and incidents over OTLP, by the real SDK, to a receiver on this machine."""

import http.server
import importlib.util
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from opentelemetry import metrics
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2

import vario
from vario.backends.numpy import NumpyModel
from vario.core.errors import ConfigError, MissingExtra


class Receiver:
    """What arrived: the latest value by name and labels, and the resources."""

    def __init__(self):
        self.values, self.resources, self.paths, self.headers = {}, [], [], []

    def take(self, path, headers, body):
        self.paths.append(path)
        self.headers.append(dict(headers))
        asked = metrics_service_pb2.ExportMetricsServiceRequest.FromString(body)
        for told in asked.resource_metrics:
            self.resources.append({one.key: one.value.string_value for one in told.resource.attributes})
            for metric in (metric for scope in told.scope_metrics for metric in scope.metrics):
                points = metric.gauge.data_points or metric.sum.data_points
                for point in points:
                    labels = tuple(sorted((one.key, one.value.string_value) for one in point.attributes))
                    is_whole = point.HasField("as_int")
                    self.values[metric.name, labels] = point.as_int if is_whole else point.as_double


@contextmanager
def receiving(status=200):
    found = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            found.take(self.path, self.headers, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    found.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def train(place, steps=12, nan_at=None, **options):
    model = NumpyModel({"layer.w": np.zeros(4), "layer.b": np.zeros(2)})
    with vario.watch(model, directory=str(place), name="run", every=1, live={"opentelemetry": options}) as monitor:
        for step in range(steps):
            scale = float("nan") if step == nan_at else float(step)
            model.backward_ended({"layer.w": np.full(4, scale), "layer.b": np.ones(2)})
            model.update_ended()
            monitor.log(**{"loss": 1 / (step + 1), "eval/acc": 0.5})
    return vario.open_run(place / "run")


SERIES = ["loss", "eval/*", "gradient|*|norm"]


def test_numbers_are_gauges_and_incidents_are_counted(tmp_path):
    with receiving() as found:
        run = train(tmp_path, nan_at=10, series=SERIES, seconds=0, endpoint=f"{found.address}/v1/metrics")
    assert run.parts_off == []
    mine = ("run", "run")
    assert found.values["vario.loss", (mine,)] == 1 / 12
    assert found.values["vario.eval/acc", (mine,)] == 0.5
    assert found.values["vario.last_step", (mine,)] == 11
    assert found.values["vario.gradient.norm", (mine, ("target", "layer.w"))] == 22.0
    assert found.values["vario.gradient.norm", (mine, ("target", "layer.b"))] == pytest.approx(2**0.5)
    counted = {
        dict(labels)["rule"]: value for (name, labels), value in found.values.items() if name == "vario.incidents"
    }
    assert counted == {incident.lead.rule: 1 for incident in run.incidents}
    assert "non_finite" in counted
    assert {resource["service.name"] for resource in found.resources} == {"vario"}


def test_an_incident_of_the_last_step_is_counted_too(tmp_path):
    with receiving() as found:
        train(tmp_path, nan_at=11, series=["nothing"], seconds=0, endpoint=f"{found.address}/v1/metrics")
    labels = (("rule", "non_finite"), ("run", "run"), ("severity", "page"))
    assert found.values["vario.incidents", labels] == 1


def test_variables_of_the_sdk_say_where_and_as_what(tmp_path, monkeypatch):
    with receiving() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.address)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=of-this-test")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "trainer")
        train(tmp_path, series=["loss"], run_name="mine")
    assert set(found.paths) == {"/v1/metrics"}
    assert found.headers[0]["x-key"] == "of-this-test"
    assert found.resources[0]["service.name"] == "trainer"
    assert ("vario.loss", (("run", "mine"),)) in found.values
    assert "of-this-test" not in (tmp_path / "run" / "run.json").read_text()


def test_the_provider_of_the_script_is_left_alone(tmp_path):
    before = metrics.get_meter_provider()
    with receiving() as found:
        train(tmp_path, series=["loss"], endpoint=f"{found.address}/v1/metrics")
    assert metrics.get_meter_provider() is before


def test_a_collector_that_refuses_costs_the_numbers_alone(tmp_path, caplog):
    with receiving(status=400) as found:
        run = train(tmp_path, series=["loss"], endpoint=f"{found.address}/v1/metrics")
    assert (run.state, len(run.series("loss", "scalar"))) == ("finished", 12)
    assert "Failed to export" in caplog.text


def test_names_have_only_letters_that_the_sdk_takes(tmp_path):
    with receiving() as found:
        model = NumpyModel({"w": np.zeros(2)})
        live = {"opentelemetry": {"endpoint": f"{found.address}/v1/metrics", "series": ["a*"]}}
        with vario.watch(model, directory=str(tmp_path), name="run", live=live) as monitor:
            model.backward_ended({"w": np.ones(2)})
            model.update_ended()
            monitor.log(**{"a b:c%": 1.0, "a" * 300: 2.0})
    names = {name for name, _ in found.values}
    assert names == {"vario.a_b_c_", "vario." + "a" * 200, "vario.last_step"}


def test_without_its_packages_the_error_is_its_install_line(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(MissingExtra, match=r"live.opentelemetry needs an extra: pip install 'vario\[otel\]'"):
        train(tmp_path)


def test_a_wrong_option_raises_before_the_first_step(tmp_path):
    with pytest.raises(ConfigError, match=r"live.opentelemetry.endpoint: expected str"):
        train(tmp_path, endpoint=3)
    with pytest.raises(ConfigError, match=r"Did you mean 'endpoint'"):
        train(tmp_path, endpiont="x")
