"""A model's parameters and what training them takes, in words."""

from __future__ import annotations

import sys
from typing import Any

from vario.analysis.parameters import ModelSummary, format_param_count, model_summary
from vario.core.text import size

WIDTH = 64
COLUMNS = (("fp16 or bf16", "fp16"), ("fp32 or mixed", "fp32"))
"""Headings, and the precision each stands for: mixed precision keeps weights, gradients and moments as fp32 does."""


def print_model_info(model: Any, show_breakdown: bool = False) -> None:
    """Print how many parameters a model has and what training it keeps in memory; with every parameter if asked to."""
    sys.stdout.write(model_text(model_summary(model), show_breakdown))


def model_text(summary: ModelSummary, show_breakdown: bool = False) -> str:
    """The text `print_model_info` prints."""
    line = "=" * WIDTH
    parts = [line, f"MODEL INFO: {summary.model_name}", line, *_counts(summary), line, *_memory(summary), line]
    if show_breakdown:
        parts += [*_breakdown(summary), line]
    return "\n".join(parts) + "\n"


def _counts(summary: ModelSummary) -> list[str]:
    rows = (
        ("Total parameters:", summary.num_parameters),
        ("Trainable parameters:", summary.num_trainable),
        ("Frozen parameters:", summary.num_frozen),
    )
    lines = [f"{label:<22}{_count(number)}" for label, number in rows]
    return [*lines, f"{'Trainable ratio:':<22}{_percent(summary.trainable_share)}"]


def _count(number: int) -> str:
    return f"{number:,} ({format_param_count(number)})" if number >= 1000 else str(number)


def _percent(share: float) -> str:
    """Two digits, and more for a share that would look like nothing."""
    return f"{share:.2%}" if share == 0 or share >= 1e-4 else f"{share * 100:.1g}%"


def _memory(summary: ModelSummary) -> list[str]:
    states = [summary.state_bytes(precision) for _, precision in COLUMNS]
    whose = "Memory on this rank" if summary.is_sharded else "Memory"
    rows = (
        ("Parameters:", [state.parameters for state in states]),
        ("Gradients:", [state.gradients for state in states]),
        ("Optimizer (AdamW):", [state.optimizer for state in states]),
        ("Together:", [state.total for state in states]),
    )
    heading = f"{whose:<22}" + "".join(f"{name:>16}" for name, _ in COLUMNS)
    lines = [f"{label:<22}" + "".join(f"{size(number):>16}" for number in numbers) for label, numbers in rows]
    return [heading, *lines, "Activations come on top."]


def _breakdown(summary: ModelSummary) -> list[str]:
    total = max(summary.num_parameters, 1)
    width = max((len(form.name) for form in summary.forms), default=4)
    lines = [f"{'name':<{width}}  {'params':>14}  {'share':>7}  {'dtype':<9} shape"]
    for form in summary.forms:
        shape = " x ".join(map(str, form.shape)) or "one number"
        note = "" if form.is_trainable else "  frozen"
        share = form.num_elements / total
        lines.append(f"{form.name:<{width}}  {form.num_elements:>14,}  {share:>7.2%}  {form.dtype:<9} {shape}{note}")
    return lines
