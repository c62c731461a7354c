"""Checks whether gradients are healthy: the findings, and their text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vario.backends.gradient_rows import GradientRows
from vario.core.errors import ConfigError
from vario.core.records import COUNT, INFS, MAX, MIN, NANS, SUM_SQUARES, ZEROS, merge_all
from vario.core.text import number
from vario.statistics.how_spread import mean, std

APPLIES_TO = "the norm of each parameter's gradient; for a sharded one, of this rank's part"
"""What the thresholds are compared with."""


@dataclass(frozen=True)
class GradientStats:
    """Statistics over all elements of all gradients; min and max ignore NaN."""

    min_grad: float
    max_grad: float
    mean_grad: float
    std_grad: float
    num_zero: int
    num_nan: int
    num_inf: int


@dataclass(frozen=True)
class Finding:
    """One problem; `kind` is not_finite, too_large, large, no_gradients or all_zero."""

    kind: str
    target: str = ""
    nans: int = 0
    infs: int = 0
    count: int = 0
    norm: float = math.nan

    @property
    def is_error(self) -> bool:
        """Whether it makes gradients unhealthy; a large norm alone is a warning."""
        return self.kind != "large"


@dataclass(frozen=True)
class GradientHealth:
    """The result of checking all gradients."""

    findings: Sequence[Finding]
    """Errors first, then warnings, each in model order."""
    stats: GradientStats
    norm: float
    """The norm of all gradients."""
    largest: str
    """The parameter whose gradient has the largest finite norm; empty if none has."""
    largest_norm: float
    names: Sequence[str]
    zero: Sequence[str]
    """Parameters whose gradient is all zeros: used, but without a gradient signal, such as an expert without tokens."""
    missing: Sequence[str]
    num_frozen: int
    unread: Sequence[str]
    warn_threshold: float
    error_threshold: float

    @property
    def is_healthy(self) -> bool:
        """Whether there are no errors, at most warnings."""
        return not any(finding.is_error for finding in self.findings)


def check_thresholds(warn_threshold: float, error_threshold: float) -> None:
    """Raise ConfigError for invalid thresholds."""
    for name, value in (("warn_threshold", warn_threshold), ("error_threshold", error_threshold)):
        if not isinstance(value, (int, float)) or not value > 0:
            raise ConfigError(f"{name}: expected a number above 0, got {value!r}")
    if warn_threshold > error_threshold:
        raise ConfigError(
            f"warn_threshold: {warn_threshold} is above error_threshold, {error_threshold}. Did you swap them?"
        )


def judge(rows: GradientRows, warn_threshold: float = 1.0, error_threshold: float = 10.0) -> GradientHealth:
    """Check for NaN, Inf and large norms; a parameter without gradient or with only zeros is listed, not an error."""
    table = rows.summaries
    # Summed in float64 whatever the gradients' dtype, so half-precision norms do not overflow.
    with np.errstate(invalid="ignore"):
        norms = np.sqrt(table[:, SUM_SQUARES])
    errors: list[Finding] = []
    warnings: list[Finding] = []
    for name, row, norm in zip(rows.names, table, norms.tolist(), strict=True):
        if row[NANS] or row[INFS]:
            errors.append(Finding("not_finite", name, int(row[NANS]), int(row[INFS]), int(row[COUNT]), norm))
        elif norm > error_threshold:
            errors.append(Finding("too_large", name, count=int(row[COUNT]), norm=norm))
        elif norm > warn_threshold:
            warnings.append(Finding("large", name, count=int(row[COUNT]), norm=norm))
    zero = [name for name, row in zip(rows.names, table, strict=True) if row[COUNT] and row[ZEROS] == row[COUNT]]
    if not rows.names and not rows.unread:
        errors.append(Finding("no_gradients"))
    elif rows.names and len(zero) == len(rows.names):
        errors.append(Finding("all_zero"))
    merged = merge_all(table)
    finite = np.where(np.isfinite(norms), norms, -1.0)
    top = int(finite.argmax()) if len(finite) and finite.max() >= 0 else None
    stats = GradientStats(
        min_grad=float(merged[0, MIN]),
        max_grad=float(merged[0, MAX]),
        mean_grad=float(mean(merged)[0]),
        std_grad=float(std(merged)[0]),
        num_zero=int(merged[0, ZEROS]),
        num_nan=int(merged[0, NANS]),
        num_inf=int(merged[0, INFS]),
    )
    return GradientHealth(
        findings=(*errors, *warnings),
        stats=stats,
        norm=float(np.sqrt(merged[0, SUM_SQUARES])),
        largest="" if top is None else rows.names[top],
        largest_norm=math.nan if top is None else float(norms[top]),
        names=rows.names,
        zero=zero,
        missing=rows.missing,
        num_frozen=rows.num_frozen,
        unread=rows.unread,
        warn_threshold=warn_threshold,
        error_threshold=error_threshold,
    )


def finding_text(finding: Finding, health: GradientHealth) -> str:
    """Describe one finding in a sentence."""
    if finding.kind == "no_gradients":
        return "no parameter has a gradient: check after backward() and before zero_grad()"
    if finding.kind == "all_zero":
        return f"all {len(health.names)} gradients are zero: the model does not learn"
    if finding.kind == "not_finite":
        kinds = [f"{num} {kind}" for num, kind in ((finding.nans, "NaN"), (finding.infs, "Inf")) if num]
        return f"{finding.target}: {' and '.join(kinds)} in {finding.count} elements of its gradient"
    limit, name = (
        (health.error_threshold, "error_threshold")
        if finding.kind == "too_large"
        else (health.warn_threshold, "warn_threshold")
    )
    return f"{finding.target}: gradient norm {number(finding.norm)} is above {name} {number(limit)}"


def check_gradient_health(model: Any, warn_threshold: float = 1.0, error_threshold: float = 10.0) -> dict[str, Any]:
    """Check a model's gradients after backward() and before zero_grad(): returns `healthy`, `issues` and `stats`.

    NaN, Inf and a parameter's norm above `error_threshold` are unhealthy; a norm above `warn_threshold` is only an
    issue.
    """
    from vario.backends.torch.reduce.model_gradients import gradient_rows

    check_thresholds(warn_threshold, error_threshold)
    health = judge(gradient_rows(model), warn_threshold, error_threshold)
    return {
        "healthy": health.is_healthy,
        "issues": [finding_text(finding, health) for finding in health.findings],
        "stats": _stats(health),
    }


def _stats(health: GradientHealth) -> dict[str, Any]:
    stats = health.stats
    return {
        "min": stats.min_grad,
        "max": stats.max_grad,
        "mean": stats.mean_grad,
        "std": stats.std_grad,
        "num_zero": stats.num_zero,
        "num_nan": stats.num_nan,
        "num_inf": stats.num_inf,
        "norm": health.norm,
        "largest": {"name": health.largest, "norm": health.largest_norm},
        "num_with_gradient": len(health.names) + len(health.unread),
        "num_frozen": health.num_frozen,
        "zero": list(health.zero),
        "missing": list(health.missing),
        "unread": list(health.unread),
        "thresholds": {
            "apply_to": APPLIES_TO,
            "warn": health.warn_threshold,
            "error": health.error_threshold,
        },
    }
