"""A model's parameters and the memory to train them, as text."""

from __future__ import annotations

import sys
from typing import Any

from vario.analysis.parameters import ModelSummary, format_param_count, model_summary
from vario.core.text import size

WIDTH = 64
COLUMNS = (("fp16 or bf16", "fp16"), ("fp32 or mixed", "fp32"))
"""Headings and their precision: mixed precision keeps weights, gradients and moments in fp32."""


def print_model_info(model: Any, show_breakdown: bool = False) -> None:
    """Print how many parameters a model has and how much memory training it takes; optionally lists every parameter."""
    sys.stdout.write(model_text(model_summary(model), show_breakdown))


def model_text(summary: ModelSummary, show_breakdown: bool = False) -> str:
    """Return the text that `print_model_info` prints."""
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
    """Two digits, and more for a very small share."""
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
    return [heading, *lines, "Activations are not included."]


def _breakdown(summary: ModelSummary) -> list[str]:
    total = max(summary.num_parameters, 1)
    width = max((len(spec.name) for spec in summary.specs), default=4)
    lines = [f"{'name':<{width}}  {'params':>14}  {'share':>7}  {'dtype':<9} shape"]
    for spec in summary.specs:
        shape = " x ".join(map(str, spec.shape)) or "one number"
        note = "" if spec.is_trainable else "  frozen"
        share = spec.num_elements / total
        lines.append(f"{spec.name:<{width}}  {spec.num_elements:>14,}  {share:>7.2%}  {spec.dtype:<9} {shape}{note}")
    return lines
