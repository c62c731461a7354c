"""Record what happens inside a deep-learning training run: a few numbers per tensor and step, in a run folder.

Names are resolved on first use, so importing vario imports no framework, no pyarrow and no numpy.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import warnings
from typing import TYPE_CHECKING, Any

from vario.core.errors import UnsupportedRelease
from vario.core.package import VERSION as __version__

if sys.version_info < (3, 10):  # noqa: UP036 - a copy on PYTHONPATH has no metadata by which pip could refuse it
    raise UnsupportedRelease(
        "vario needs Python 3.10 or newer; this is Python {}.{}. ".format(*sys.version_info)
        + "Create an environment with a newer one: python3.12 -m venv .venv"
    )

if TYPE_CHECKING:
    from vario.analysis.memory import predict_memory
    from vario.analysis.model_text import print_model_info
    from vario.config import Config
    from vario.core.errors import ConfigError, ModelError, RunError, VarioError
    from vario.integrations.transformers import MonitorCallback
    from vario.rules.api.alerts import Alert, Incident
    from vario.runs.compare.difference import diff
    from vario.runs.findings.check import check
    from vario.runs.findings.desync import first_desync
    from vario.runs.findings.diagnosis import diagnose
    from vario.runs.findings.onset import first_bad
    from vario.runs.reader import Series
    from vario.runs.run import Run, list_runs, open_run
    from vario.training.monitor import Monitor
    from vario.training.start import start, watch

_HOMES = {
    "watch": "vario.training.start",
    "start": "vario.training.start",
    "Monitor": "vario.training.monitor",
    "open_run": "vario.runs.run",
    "list_runs": "vario.runs.run",
    "Run": "vario.runs.run",
    "Series": "vario.runs.reader",
    "first_bad": "vario.runs.findings.onset",
    "first_desync": "vario.runs.findings.desync",
    "check": "vario.runs.findings.check",
    "diagnose": "vario.runs.findings.diagnosis",
    "diff": "vario.runs.compare.difference",
    "Alert": "vario.rules.api.alerts",
    "Incident": "vario.rules.api.alerts",
    "Config": "vario.config",
    "VarioError": "vario.core.errors",
    "ConfigError": "vario.core.errors",
    "ModelError": "vario.core.errors",
    "RunError": "vario.core.errors",
    "predict_memory": "vario.analysis.memory",
    "print_model_info": "vario.analysis.model_text",
    "MonitorCallback": "vario.integrations.transformers",
}
"""Each public name and its module."""

_OF_OTHERS = {"load_yaml": "vario.compat.mindformers"}
"""Names for those who come from other tools. They are documented where those tools are."""

_DEPRECATED = {
    "Frame": "vario.core.records",
    "check_gradient_health": "vario.analysis.health",
    "GradientStats": "vario.analysis.health",
    "estimate_model_memory": "vario.analysis.memory",
    "max_batch_size": "vario.analysis.memory",
    "MemoryPrediction": "vario.analysis.memory",
    "count_parameters": "vario.analysis.parameters",
    "format_param_count": "vario.analysis.parameters",
    "get_parameter_breakdown": "vario.analysis.parameters",
    "get_gpu_memory_info": "vario.analysis.training",
    "TrainingMetrics": "vario.analysis.training",
    "TrainingMonitor": "vario.analysis.training",
}
"""Names that were public and are imported from their modules now; they still work in this release."""

__all__ = [
    "Alert",
    "Config",
    "ConfigError",
    "Incident",
    "ModelError",
    "Monitor",
    "MonitorCallback",
    "Run",
    "RunError",
    "Series",
    "VarioError",
    "__version__",
    "check",
    "diagnose",
    "diff",
    "first_bad",
    "first_desync",
    "list_runs",
    "open_run",
    "predict_memory",
    "print_model_info",
    "start",
    "watch",
]


def __getattr__(name: str) -> Any:
    if home := _HOMES.get(name) or _OF_OTHERS.get(name):
        found: Any = getattr(importlib.import_module(home), name)
    elif name in _DEPRECATED:
        home = _DEPRECATED[name]
        warnings.warn(f"vario.{name} is deprecated: use `from {home} import {name}`", DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(home), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"vario.{name}") is not None:
        found = importlib.import_module(f"vario.{name}")  # `vario.config.read_config` after `import vario` alone
    else:
        raise AttributeError(f"module 'vario' has no attribute '{name}'")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
