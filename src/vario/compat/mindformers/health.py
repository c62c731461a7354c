"""Which checkpoints are healthy: those since whose predecessor no limit on gradient norms was exceeded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from vario.core.errors import RunError
from vario.training.monitor import Monitor

FILE = "health_ckpts.json"
RULES = ("embedding_norm_limit", "gradient_norm_limit", "non_finite")
"""Rules whose alerts make a checkpoint unhealthy."""


class CheckpointHealth:
    """Keeps `health_ckpts.json` in a folder: one entry per checkpoint with `is_health`, `epoch` and `step`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder) / FILE
        self.entries: list[dict[str, Any]] = []
        if self.path.exists():
            try:
                self.entries = list(json.loads(self.path.read_text(encoding="utf8")))
            except (OSError, ValueError, TypeError) as error:
                raise RunError(f"{self.path}: cannot be read: {error}. Move it away to start a new one.") from error

    def record(self, monitor: Monitor, epoch: int, step: int) -> bool:
        """Note a checkpoint saved after `step` steps; return whether it is healthy."""
        monitor.wait()
        since = max((entry["step"] for entry in self.entries if entry["step"] < step), default=0)
        alerts = [] if monitor.alerts is None else monitor.alerts.alerts
        is_bad = any(alert.rule in RULES and since <= alert.step < step for alert in alerts)
        kept = [entry for entry in self.entries if entry["step"] != step]
        self.entries = [*kept, {"is_health": int(not is_bad), "epoch": epoch, "step": step}]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        half = self.path.with_name(f".{FILE}.tmp")
        half.write_text(json.dumps(self.entries, indent=1), encoding="utf8")
        os.replace(half, self.path)
        return not is_bad

    def newest_healthy(self, before: int | None = None) -> dict[str, Any] | None:
        """Return the entry to resume from: the newest healthy one, of a step before `before` if given."""
        healthy = [entry for entry in self.entries if entry.get("is_health")]
        if before is not None:
            healthy = [entry for entry in healthy if entry["step"] < before]
        return max(healthy, key=lambda entry: int(entry["step"]), default=None)
