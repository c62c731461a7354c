"""Predict how much GPU memory training a model takes, without a GPU.

Simulates one training step, with forward, backward and the real optimizer, on tensors without data. --model is a
config.json of transformers, its folder, or module:function for a function that returns a model, (model, batch) or
(model, batch, loss), where loss is a function of outputs and batch.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from vario.cli import arguments as shared
from vario.cli import output

EXAMPLES = """
vario memory --model config.json --batch 8 --seq 2048 --precision bf16 --optimizer adamw --checkpointing
vario memory --model my_package.models:build --batch 64 --precision bf16-mixed
vario memory --model config.json --seq 4096 --gpu a100 --max-batch
vario memory --model config.json --batch 8 --gpus 8 --strategy fsdp --json
"""

PRECISIONS = ("fp32", "bf16", "fp16", "bf16-mixed", "fp16-mixed")
STRATEGIES = ("ddp", "fsdp", "zero1", "zero2", "zero3")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Add the model and the training setup."""
    parser.add_argument("--model", required=True, metavar="M", help="config.json, its folder, or module:function")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="examples per step and GPU (default: 1)")
    parser.add_argument("--seq", type=int, default=512, metavar="N", help="tokens per example (default: 512)")
    parser.add_argument(
        "--precision",
        choices=PRECISIONS,
        default="bf16",
        help="one dtype for everything, or autocast over float32 weights: fp32, bf16, fp16, bf16-mixed, fp16-mixed "
        "(default: bf16)",
    )
    parser.add_argument(
        "--optimizer", default="adamw", metavar="O", help="adamw, adamw_fused, sgd, adafactor, ... (default: adamw)"
    )
    parser.add_argument(
        "--checkpointing", action="store_true", help="recompute activations in backward (activation checkpointing)"
    )
    parser.add_argument("--accumulation", type=int, default=1, metavar="N", help="micro-steps per step (default: 1)")
    parser.add_argument("--padded", action="store_true", help="batches have padding, so attention needs a mask")
    parser.add_argument("--keep-outputs", action="store_true", help="the loop keeps the outputs during backward")
    parser.add_argument("--gpu", default="h100", metavar="G", help="h100, h200, a100, 4090, ... (default: h100)")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="number of GPUs (default: 1)")
    parser.add_argument(
        "--strategy", choices=STRATEGIES, default="ddp", help="how the GPUs share the work (default: ddp)"
    )
    parser.add_argument("--max-batch", action="store_true", help="find the largest batch that fits")
    parser.add_argument("--budget", metavar="B", help="memory limit, such as 24GiB or a GPU (default: --gpu)")
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Build the model, simulate a step and print the result."""
    # Hide transformers' remarks about a configuration.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from vario.analysis.building import build_model
    from vario.analysis.memory import MAX_BATCH, budget_bytes, find_gpu, max_batch_size, predict_memory

    dtype = {"bf16": "bfloat16", "fp16": "float16"}.get(arguments.precision, "float32")
    budget = arguments.budget or arguments.gpu
    # Reject wrong values before building anything.
    find_gpu(arguments.gpu)
    budget_bytes(budget)
    built = build_model(arguments.model, arguments.batch, arguments.seq, dtype)
    options = {
        "sequence_length": arguments.seq,
        "precision": arguments.precision,
        "optimizer": arguments.optimizer,
        "checkpointing": arguments.checkpointing,
        "accumulation": arguments.accumulation,
        "padded": arguments.padded,
        "keep_outputs": arguments.keep_outputs,
        "loss": built.loss,
        "gpu": arguments.gpu,
        "gpus": arguments.gpus,
        "strategy": arguments.strategy,
    }
    found = predict_memory(built.model, built.batch, batch_size=arguments.batch, **options)
    found = replace(found, notes=[*built.notes, *found.notes])
    largest = max_batch_size(built.model, budget, built.batch, **options) if arguments.max_batch else None
    if arguments.json:
        answer = {**output.plain(found), "total_bytes": found.total_bytes, "is_upper_bound": found.is_upper_bound}
        output.print_json(answer if largest is None else {**answer, "max_batch_size": largest})
    else:
        from vario.analysis.memory_text import prediction_panel

        title = f"{type(built.model).__name__}, batch {arguments.batch}"
        most = f"{largest} or more" if largest == MAX_BATCH else str(largest or "")
        shown = None if largest is None else (most, budget)
        output.stdout().print(prediction_panel(found, title, shown))
    return 0
