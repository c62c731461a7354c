"""Live numbers for OpenTelemetry."""

from __future__ import annotations

import importlib
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from vario.core.package import VERSION
from vario.core.records import StepRecord
from vario.rules.api.alerts import Incident
from vario.sinks.live.chosen import Values
from vario.sinks.live.live_sink import Batch, LiveSink

LAST_STEP = "last_step"
SERVICE = "service.name"
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\-/]")
MOST_CHARACTERS = 200
"""The longest name of an instrument is 255 characters, with what a collector may put before it."""


class OpenTelemetry(LiveSink):
    """Sends gauges and counts of incidents over OTLP; what is not an option is taken from `OTEL_...` variables."""

    name: ClassVar[str] = "opentelemetry"
    package: ClassVar[str | None] = "opentelemetry.exporter.otlp.proto.http"
    extra: ClassVar[str | None] = "otel"
    options: ClassVar[Mapping[str, tuple[type, ...]]] = {
        **dict.fromkeys(("endpoint", "run_name"), (str,)),
        "export_seconds": (int, float),
    }

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(options)
        self._gauges: dict[str, Any] = {}
        self._incidents: deque[tuple[str, str]] = deque()
        """Severity and leading rule of those that are not counted yet."""

    def always(self, record: StepRecord) -> Values:
        """Return the step, by which one sees that training goes on."""
        return {LAST_STEP: record.step}

    def incident_came(self, incident: Incident) -> None:
        """Count it; the tool's thread sends it."""
        self._incidents.append((incident.severity, incident.lead.rule))

    def start(self) -> None:
        """Start to export, beside what the script itself may export."""
        sdk: Any = importlib.import_module("opentelemetry.sdk.metrics")
        export: Any = importlib.import_module("opentelemetry.sdk.metrics.export")
        resources: Any = importlib.import_module("opentelemetry.sdk.resources")
        interval = self.chosen.get("export_seconds")
        reader = export.PeriodicExportingMetricReader(
            self.exporter(), export_interval_millis=None if interval is None else 1000 * float(interval)
        )
        resource = resources.Resource.create()
        if str(resource.attributes.get(SERVICE, "unknown")).startswith("unknown"):
            resource = resource.merge(resources.Resource({SERVICE: "vario"}))
        # A run that cannot reach its collector must not wait for it at exit: `end` does that, for a while.
        self._provider = sdk.MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("vario", VERSION)
        self._counter = self._meter.create_counter("vario.incidents", description="Incidents found by rules.")
        self._run = {"run": self.chosen.get("run_name", self.header.path.name)}

    def exporter(self) -> Any:
        """Return what sends the numbers: OTLP over HTTP."""
        otlp: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.http.metric_exporter")
        endpoint = self.chosen.get("endpoint")
        return otlp.OTLPMetricExporter() if endpoint is None else otlp.OTLPMetricExporter(endpoint=endpoint)

    def send(self, batches: Sequence[Batch]) -> None:
        """Set the gauges; the exporter reads them at its own pace."""
        latest: dict[str, float] = {}
        for batch in batches:
            latest.update(batch.values)
        for name, value in latest.items():
            quantity, target, statistic = self._series.parts.get(name, ("", "", ""))
            labels = {**self._run, "target": target} if quantity else self._run
            self._gauge(f"{quantity}.{statistic}" if quantity else name).set(value, labels)
        self._count()

    def end(self, state: str) -> None:
        """Send the rest."""
        self._count()
        self._provider.shutdown()

    def _gauge(self, name: str) -> Any:
        found = self._gauges.get(name)
        if found is None:
            key = _NOT_IN_NAMES.sub("_", name)[:MOST_CHARACTERS]
            found = self._gauges[name] = self._meter.create_gauge(f"vario.{key}")
        return found

    def _count(self) -> None:
        while self._incidents:
            severity, rule = self._incidents.popleft()
            self._counter.add(1, {**self._run, "severity": severity, "rule": rule})
