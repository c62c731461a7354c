"""DeepSpeed where it cannot be tested on a CPU: float16 with a dynamic loss scale, CUDA and its streams, on one rank.

    python bench/deepspeed_cuda.py

Compares what was recorded with what DeepSpeed's own functions answer (`safe_get_full_grad` and so on), and the steps
marked as skipped with its count. Prints one line a case; the exit status is 1 if one is wrong.
"""

import logging
import os
import sys
from typing import Any

import deepspeed
import torch
from torch import nn

import vario

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied", "moment"]
STEPS = 16
CLIP = 0.1
CASES = [(stage, kind) for stage in (0, 1, 2, 3) for kind in ("fp16", "bf16")]


def initialize(stage: int, kind: str) -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(101, 96), nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 101))
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
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    return engine


def truth_of_gradients(engine: Any) -> dict[str, torch.Tensor]:
    # Stage 0 scales no loss in 0.19, whatever its optimizer says.
    scale = float(getattr(engine.optimizer, "loss_scale", 1.0)) if engine.zero_optimization_stage() else 1.0
    found = ((name, deepspeed.utils.safe_get_full_grad(p)) for name, p in engine.module.named_parameters())
    return {name: gradient.double() / scale for name, gradient in found if gradient is not None}


def truth_of_weights(engine: Any) -> dict[str, torch.Tensor]:
    found = ((name, deepspeed.utils.safe_get_full_fp32_param(p)) for name, p in engine.module.named_parameters())
    return {name: weight.double() for name, weight in found if weight is not None}


def rows_of(monitor: vario.Monitor) -> dict[tuple[int, str, str], Any]:
    return {
        (frame.step, frame.quantity, target): row
        for record in monitor.sinks["in_memory"].records  # type: ignore[attr-defined]
        for frame in record.frames
        for target, row in zip(frame.targets, frame.summaries, strict=True)
    }


def differs(row: Any, tensor: torch.Tensor) -> bool:
    """Count, sum of squares, extremes and NaN of a row against the tensor itself."""
    finite = tensor[tensor.isfinite()]
    if row is None or row[0] != tensor.numel() or row[5] != tensor.isnan().sum().item():
        return True
    if finite.numel() < tensor.numel():
        return False  # of infinite elements only the count is compared
    seen, truth = (
        torch.tensor([row[2], row[3], row[4]]),
        torch.stack([tensor.square().sum(), tensor.min(), tensor.max()]),
    )
    return not torch.allclose(seen.double(), truth.cpu(), rtol=1e-3, atol=1e-12)


def run(stage: int, kind: str) -> bool:
    engine = initialize(stage, kind)
    options = {"quantities": QUANTITIES, "every": 1, "strict": True, "sinks": ["in_memory"]}
    gradients, weights, skipped = [], [], []
    with vario.watch(engine, **options) as monitor:
        for step in range(STEPS):
            tokens = torch.randint(0, 101, (8, 33), generator=torch.Generator().manual_seed(step)).to(engine.device)
            logits = engine(tokens[:, :-1])
            engine.backward(nn.functional.cross_entropy(logits.reshape(-1, 101), tokens[:, 1:].reshape(-1)))
            gradients.append(truth_of_gradients(engine))
            before = engine.skipped_steps
            engine.step()
            skipped.append(engine.skipped_steps > before)
            weights.append(truth_of_weights(engine))
    rows = rows_of(monitor)
    wrong = []
    for step in range(STEPS):
        for quantity in ("gradient", "gradient_local", "gradient_accumulated"):
            wrong += [
                (step, quantity, name)
                for name, tensor in gradients[step].items()
                if differs(rows.get((step, quantity, name)), tensor)
            ]
        if not skipped[step]:
            wrong += [
                (step, "weight", name)
                for name, tensor in weights[step].items()
                if differs(rows.get((step, "weight", name)), tensor)
            ]
            applied = sum(row[2] for (at, kind, _), row in rows.items() if (at, kind) == (step, "gradient_applied"))
            if applied**0.5 > CLIP * 1.01:
                wrong.append((step, "gradient_applied", "is not clipped"))
        elif any((step, "weight", name) in rows for name in weights[step]):
            wrong.append((step, "weight", "of a skipped update"))
    marked = [bool(record.scalars.values.get("skipped_step")) for record in monitor.sinks["in_memory"].records]  # type: ignore[attr-defined]
    if marked != skipped:
        wrong.append((-1, "skipped_step", f"{marked} instead of {skipped}"))
    outer = type(engine.optimizer).__name__
    print(f"ZeRO {stage} {kind} {outer:30s} {len(rows)} rows, {sum(skipped)} of {STEPS} skipped:", end=" ")
    print(f"{len(wrong)} wrong, {wrong[:4]}" if wrong else "right", flush=True)
    return not wrong


def main() -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29512"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("LOCAL_RANK", "0")
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.init_distributed()
    print(f"torch {torch.__version__}, DeepSpeed {deepspeed.__version__}, {torch.cuda.get_device_name()}")
    right = [run(*case) for case in CASES]
    torch.distributed.destroy_process_group()
    sys.exit(0 if all(right) else 1)


if __name__ == "__main__":
    main()
