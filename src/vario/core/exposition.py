"""Numbers as text for Prometheus: the one form and the one set of labels of the notice and of the server's /metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal

PREFIX = "vario_"
MEDIA = "text/plain; version=0.0.4; charset=utf-8"

Sample = tuple[Mapping[str, str], float]
"""Labels and a value."""


def family(name: str, kind: Literal["counter", "gauge"], meaning: str, samples: Iterable[Sample]) -> list[str]:
    """Return the lines of all samples of one name, which gets the prefix `vario_`."""
    whole = f"{PREFIX}{name}"
    lines = [f"# HELP {whole} {meaning}", f"# TYPE {whole} {kind}"]
    return lines + [f"{whole}{_labels(labels)} {_number(value)}" for labels, value in samples]


def _labels(labels: Mapping[str, str]) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
    return f"{{{shown}}}" if shown else ""


def _number(value: float) -> str:
    if math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
