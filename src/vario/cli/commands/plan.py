"""Predict how much a run will write before it starts: rows per step, bytes a day, files and cost.

Counts the rows of a model at the default intervals, from a forward pass without memory. MODEL is a config.json of
transformers, its folder, or module:function, as for `vario memory`. Sizes come from rates that were measured on other
models, so they are estimates. See docs/volume.md.
"""

from __future__ import annotations

import argparse
import os

from vario.cli import arguments as shared
from vario.cli import output

EXAMPLES = """
vario plan config.json --steps 100000 --ranks 8 --step-seconds 0.5
vario plan my_package.models:build --steps 1000000 --retention steps=5000,bytes=2GB
vario plan config.json --steps 100000 --ranks 64 --strategy fsdp --json
"""


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the model and the run."""
    parser.add_argument("model", metavar="MODEL", help="config.json, its folder, or module:function")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="steps of the run")
    parser.add_argument("--ranks", type=int, default=1, metavar="R", help="number of ranks (default: 1)")
    parser.add_argument("--step-seconds", type=float, metavar="S", help="seconds per step, for bytes a day")
    parser.add_argument(
        "--strategy",
        choices=("ddp", "fsdp"),
        default="ddp",
        help="ddp: one rank records what all have; fsdp: each records its shards (default: ddp)",
    )
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="examples per step and rank (default: 1)")
    parser.add_argument("--seq", type=int, default=512, metavar="N", help="tokens per example (default: 512)")
    parser.add_argument("--optimizer", default="adamw", metavar="O", help="adamw, sgd, ... (default: adamw)")
    parser.add_argument(
        "--retention",
        metavar="A=X,B=X | tiers | all",
        default="tiers",
        help="what is kept in full, as the option `retention` (default: tiers)",
    )
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build the model and print what a run of it writes."""
    # Hide transformers' remarks about a configuration.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from vario.analysis.building import build_model
    from vario.analysis.volume import plan_volume
    from vario.cli.options import retention_from

    found = plan_volume(
        build_model(arguments.model, arguments.batch, arguments.seq),
        arguments.steps,
        arguments.ranks,
        arguments.step_seconds,
        batch_size=arguments.batch,
        sequence_length=arguments.seq,
        optimizer=arguments.optimizer,
        strategy=arguments.strategy,
        retention=retention_from(arguments.retention),
    )
    if arguments.json:
        output.print_json(found.to_json())
    else:
        from vario.analysis.volume_text import render_volume

        output.stdout().print(render_volume(found))
    return 0
