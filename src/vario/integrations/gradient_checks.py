"""Checks all gradients every N steps of a trainer's loop: after backward(), before clipping."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from vario.analysis.health import Finding, GradientHealth, finding_text, judge
from vario.backends.gradient_rows import GradientRows
from vario.backends.protocols.backend import Backend
from vario.backends.protocols.gradients import Gradients
from vario.core.errors import ConfigError
from vario.core.records import COLUMNS, Table
from vario.core.selector import Selector
from vario.probes import Recorder

MAX_LINES = 8
"""The most findings of one step that are printed; the run has them all."""

_EVERYTHING = frozenset(COLUMNS)


def check_interval(every: Any) -> None:
    """Raise ConfigError for an invalid number of steps."""
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ConfigError(f"gradient_check_steps: expected a whole number of at least 1, got {every!r}")


class GradientChecks:
    """Computes `gradient_check_norm`, `_healthy`, `_not_finite`, `_zero`, `_missing`, and a text of the problems."""

    quantity: ClassVar[str] = "scalar"
    every: ClassVar[int] = 1

    def __init__(self, every: int, first_step: int, say: Callable[[str], None]) -> None:
        """Check every `every`-th step, counted from `first_step`."""
        self._every = every
        self._first_step = first_step
        self._say = say
        self._rows: dict[str, int] = {}
        self._unread: set[str] = set()
        self._told: set[str] = set()
        self._is_scaled = False
        self.latest: dict[str, float] = {}
        """The numbers of the last check, until they are taken."""

    def attach(self, backend: Backend, recorder: Recorder) -> None:
        """Reduce the gradients of a checked step after each backward pass; evaluate at its end."""
        # Exact zeros: a gradient of 1e-9 is small, not missing.
        summaries = backend.summaries(0.0, _EVERYTHING)
        config = recorder.config
        selector = Selector(tuple(config.targets), config.invert)

        def backward_ended(gradients: Gradients) -> None:
            if not self._is_due(backend.clock.step):
                return
            names, tensors = gradients.named(replicas=True)
            self._is_scaled = gradients.scale is not None
            for name, row in zip(names, summaries.observe_many(tensors, gradients.scale), strict=True):
                if row is None:
                    self._unread.add(name)
                else:
                    self._rows[name] = row

        def step_ended(_: float) -> None:
            if not self._is_due(backend.clock.step):
                return
            parameters = backend.structure()["parameters"]
            chosen = set(selector.parameters([parameter["name"] for parameter in parameters]))
            rows = self._take(
                [parameter for parameter in parameters if parameter["name"] in chosen], summaries.collect()()
            )
            health = judge(rows)
            self.latest = _numbers(health)
            recorder.log(**self.latest)
            self._tell(backend.clock.step, health, self._is_scaled)

        backend.on_backward_ended(recorder.guarded("gradient_checks", backward_ended))
        recorder.on_step_ended(recorder.guarded("gradient_checks", step_ended))

    def take_latest(self) -> dict[str, float]:
        """Return the numbers of the last check, once."""
        latest, self.latest = self.latest, {}
        return latest

    def _is_due(self, step: int) -> bool:
        return step >= self._first_step and (step - self._first_step + 1) % self._every == 0

    def _take(self, parameters: Sequence[dict[str, Any]], table: Table) -> GradientRows:
        names, unread = list(self._rows), sorted(self._unread)
        picked = table[np.array(list(self._rows.values()), dtype=np.int64)]
        self._rows, self._unread = {}, set()
        missing = [
            parameter["name"]
            for parameter in parameters
            if parameter["trainable"] and parameter["name"] not in {*names, *unread}
        ]
        num_frozen = sum(not parameter["trainable"] for parameter in parameters)
        return GradientRows(names, picked, missing, num_frozen, unread)

    def _tell(self, step: int, health: GradientHealth, is_scaled: bool) -> None:
        # Each kind once: later NaN only repeat the first.
        new = [finding for finding in health.findings if finding.kind not in self._told]
        if new:
            self._told.update(finding.kind for finding in new)
            self._say(check_text(step, health, new, is_scaled))


def _numbers(health: GradientHealth) -> dict[str, float]:
    return {
        "gradient_check_norm": health.norm,
        "gradient_check_healthy": float(health.is_healthy),
        "gradient_check_not_finite": float(sum(finding.kind == "not_finite" for finding in health.findings)),
        "gradient_check_zero": float(len(health.zero)),
        "gradient_check_missing": float(len(health.missing)),
    }


def check_text(step: int, health: GradientHealth, findings: Sequence[Finding], is_scaled: bool) -> str:
    """Describe what is new at a step, one line each."""
    lines = [f"vario: gradients at step {step}, before clipping:"]
    lines += [f"  {finding_text(finding, health)}" for finding in findings[:MAX_LINES]]
    if len(findings) > MAX_LINES:
        lines.append(f"  and {len(findings) - MAX_LINES} more")
    if is_scaled and any(finding.kind == "not_finite" for finding in findings):
        lines.append(
            "  The loss is scaled: such a step is skipped and the scale is halved. Occasionally this is normal."
        )
    return "\n".join(lines)
