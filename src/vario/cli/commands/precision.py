"""Show what each tensor would lose in a lower precision, from its distribution.

One line per tensor: the range of its magnitudes, and the share of its elements that would be rounded to zero, be too
large or lose digits in fp16, bf16 and fp8, as they are and with the best power of two as a scale. With --tensor: how
the elements of one tensor are distributed over powers of two, step by step.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from vario.cli import arguments as shared
from vario.cli import output
from vario.core.errors import ConfigError
from vario.core.text import unknown

if TYPE_CHECKING:
    from vario.runs.run import Run

EXAMPLES = """
vario precision
vario precision vario_runs/demo --quantity gradient --top 20
vario precision vario_runs/demo --format e4m3,e5m2 --step 100
vario precision vario_runs/demo --tensor head.weight --quantity gradient
vario precision vario_runs/demo --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the run and what to show."""
    shared.add_run(parser)
    parser.add_argument("--quantity", metavar="Q", help="only this quantity, for example gradient")
    parser.add_argument("--step", type=int, metavar="N", help="the step to look at (default: the latest of each)")
    parser.add_argument("--format", metavar="A,B", help="formats: any of fp16, bf16, e4m3, e5m2 (default: all)")
    parser.add_argument("--top", type=int, default=40, metavar="N", help="number of lines (default: 40)")
    parser.add_argument("--tensor", metavar="NAME", help="one tensor's distribution over steps")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Show the table, or one tensor."""
    from vario.core.elements.precision import FORMATS

    if arguments.top < 1:
        raise ConfigError(f"--top: expected a number of lines of at least 1, got {arguments.top}")
    formats = [name.strip() for name in (arguments.format or ",".join(FORMATS)).split(",")]
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(unknown("--format", name, list(FORMATS)))
    found = shared.find_run(arguments.run)
    if arguments.tensor is not None:
        return _show_tensor(found, arguments)
    table = found.precision(arguments.quantity, arguments.step)
    if arguments.json:
        output.print_json(table)
    else:
        from vario.reports.precision_text import render_precision

        output.stdout().print(render_precision(table, formats, arguments.top))
    return 0


def _show_tensor(found: Run, arguments: argparse.Namespace) -> int:
    from vario.runs.views.tensors.distributions import quantities_of

    names = [arguments.quantity] if arguments.quantity else quantities_of(found, arguments.tensor)
    if not names:
        raise ConfigError(unknown("--tensor", arguments.tensor, found.targets()))
    shown = found.distribution(arguments.tensor, names[0])
    if arguments.json:
        from vario.runs.views.tensors.distributions import long_table

        output.print_json({"target": shown.target, "quantity": shown.quantity, "rows": long_table(shown).to_pylist()})
    else:
        from vario.reports.distribution_text import render_distribution

        output.stdout().print(render_distribution(shown))
    return 0
