"""Checks of DeepSpeed that need a GPU: float16 with a dynamic loss scale, CUDA and its streams, on one rank.

    python bench/deepspeed_cuda.py

Compares what was recorded with what DeepSpeed's own functions answer (`safe_get_full_grad` and so on), the first
gradients with those of a twin in float32, and the steps marked as skipped with DeepSpeed's count. Prints one line per
case; the exit status is 1 if one is wrong.
"""

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import deepspeed
import torch
from torch import nn

import vario

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied", "moment"]
STEPS = 16
CLIP = 0.1
CASES = [(stage, kind) for stage in (0, 1, 2, 3) for kind in ("fp16", "bf16")]
Rows = dict[tuple[int, str, str], Any]
Tensors = Mapping[str, torch.Tensor]


def made() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(101, 96), nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 101))


def initialize(stage: int, kind: str) -> Any:
    half: dict[str, Any] = {"enabled": True}
    if kind == "fp16":
        half.update(initial_scale_power=24, hysteresis=1)  # high enough for the first updates to overflow
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "gradient_clipping": CLIP,
        kind: half,
        "zero_optimization": {"stage": stage, "overlap_comm": stage > 1, "reduce_bucket_size": 20_000},
        "zero_allow_untested_optimizer": True,
    }
    net = made()
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.parameters(), lr=0.01), config=config)
    return engine


def loss(model: Any, step: int, device: Any) -> torch.Tensor:
    tokens = torch.randint(0, 101, (8, 33), generator=torch.Generator().manual_seed(step)).to(device)
    return nn.functional.cross_entropy(model(tokens[:, :-1]).reshape(-1, 101), tokens[:, 1:].reshape(-1))


def true_gradients(engine: Any) -> Tensors:
    # Stage 0 scales no loss in 0.19, whatever its optimizer says.
    scale = float(getattr(engine.optimizer, "loss_scale", 1.0)) if engine.zero_optimization_stage() else 1.0
    found = ((name, deepspeed.utils.safe_get_full_grad(p)) for name, p in engine.module.named_parameters())
    return {name: gradient.double() / scale for name, gradient in found if gradient is not None}


def true_weights(engine: Any) -> Tensors:
    found = ((name, deepspeed.utils.safe_get_full_fp32_param(p)) for name, p in engine.module.named_parameters())
    return {name: weight.double() for name, weight in found if weight is not None}


def gradients_of_a_twin(step: int, dtype: torch.dtype, device: Any) -> Tensors:
    twin = made().to(dtype).float().to(device)
    loss(twin, step, device).backward()
    return {name: p.grad.double() for name, p in twin.named_parameters() if p.grad is not None}


def rows_of(monitor: Any) -> Rows:
    return {
        (frame.step, frame.quantity, target): row
        for record in monitor.sinks["in_memory"].records
        for frame in record.frames
        for target, row in zip(frame.targets, frame.summaries, strict=True)
    }


def wrong(rows: Rows, step: int, quantity: str, truth: Tensors, rtol: float = 1e-3) -> Iterator[str]:
    """Those whose count, NaN, norm or extremes are not those of the tensor; of infinite ones only the count."""
    for name, tensor in truth.items():
        row = rows.get((step, quantity, name))
        if row is None or row[0] != tensor.numel() or row[5] != tensor.isnan().sum().item():
            yield f"{quantity} of {name} at {step}: {row}"
        elif tensor.isfinite().all():
            norm = tensor.norm()
            seen, known = torch.tensor([row[2] ** 0.5, row[3], row[4]]), torch.stack([norm, tensor.min(), tensor.max()])
            slack = rtol * float(norm) / tensor.numel() ** 0.5
            if not torch.allclose(seen.double(), known.cpu(), rtol=rtol, atol=slack):
                yield f"{quantity} of {name} at {step}: {seen.tolist()} instead of {known.tolist()}"


def total(rows: Rows, step: int, quantity: str) -> float:
    return float(sum(row[2] for (at, kind, _), row in rows.items() if (at, kind) == (step, quantity)) ** 0.5)


def run(stage: int, kind: str) -> bool:
    engine = initialize(stage, kind)
    options = {"quantities": QUANTITIES, "every": 1, "strict": True, "sinks": ["in_memory"]}
    gradients, weights, skipped = [], [], []
    with vario.watch(engine, **options) as monitor:
        for step in range(STEPS):
            engine.backward(loss(engine, step, engine.device))
            gradients.append(true_gradients(engine))
            before = engine.skipped_steps
            engine.step()
            skipped.append(engine.skipped_steps > before)
            weights.append(true_weights(engine))
    rows, found = rows_of(monitor), []
    for step in range(STEPS):
        for quantity in ("gradient", "gradient_local", "gradient_accumulated"):
            found += wrong(rows, step, quantity, gradients[step])
        if not skipped[step]:
            found += wrong(rows, step, "weight", weights[step])
        elif any((step, "weight", name) in rows for name in weights[step]):
            found.append(f"weights of the skipped step {step}")
    marked = [bool(record.scalars.values.get("skipped_step")) for record in monitor.sinks["in_memory"].records]  # type: ignore[attr-defined]
    if marked != skipped:
        found.append(f"skipped {marked} instead of {skipped}")
    first = skipped.index(False)  # nothing has changed the weights before it
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16
    found += wrong(rows, first, "gradient", gradients_of_a_twin(first, dtype, engine.device), rtol=0.05)
    print(f"ZeRO {stage} {kind} {type(engine.optimizer).__name__:30s} {sum(skipped)} of {STEPS} skipped;", end=" ")
    norms = [total(rows, first, quantity) for quantity in ("gradient", "gradient_applied")]
    print(f"first gradient {norms[0]:.3g}, applied {norms[1]:.3g}:", end=" ")
    print(f"{len(found)} wrong, {found[:3]}" if found else "right", flush=True)
    return not found


def main() -> None:
    ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29512"}
    for name, value in ranks.items():
        os.environ.setdefault(name, value)
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed()
    print(f"torch {torch.__version__}, DeepSpeed {deepspeed.__version__}, {torch.cuda.get_device_name()}")
    right = [run(*case) for case in CASES]
    torch.distributed.destroy_process_group()
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
