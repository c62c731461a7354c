"""Checks of the engines that need a GPU: float16 with a loss scale, NCCL, real streams. One GPU, one rank.

    torchrun --standalone --nproc-per-node 1 bench/engines_cuda.py [CASE ...]

Each case trains a tiny model and compares what vario recorded with what the runtime says itself: the norm of all
reduced gradients before clipping, the steps it skipped, the weights it ends with. Megatron-core must be on the
path (`make peers` puts it into .peers/engines). DeepSpeed has a script of its own, deepspeed_cuda.py.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import vario

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_applied", "moment"]
STEPS = 12
VOCABULARY = 64


class Found:
    """What the runtime says of each step, to be compared with the run."""

    def __init__(self) -> None:
        self.norms: dict[int, float] = {}
        self.skipped: list[int] = []
        self.weights: dict[str, torch.Tensor] = {}


def toy(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [
        torch.nn.Embedding(VOCABULARY, 32),
        torch.nn.Linear(32, 96),
        torch.nn.GELU(),
        torch.nn.Linear(96, VOCABULARY),
    ]
    return torch.nn.Sequential(*layers).to("cuda", dtype)


def loss(model: Any, step: int) -> torch.Tensor:
    ids = torch.randint(0, VOCABULARY, (8, 16), generator=torch.Generator().manual_seed(step)).cuda()
    return torch.nn.functional.cross_entropy(model(ids).float().flatten(0, 1), ids.flatten())


def watch(name: str, folder: str, model: Any, optimizer: Any = None) -> vario.Monitor:
    options = {"directory": folder, "name": name, "every": 1, "strict": True, "quantities": QUANTITIES}
    return vario.watch(model, optimizer, **options)


def torch_case(name: str, folder: str) -> Found:
    """DDP, FSDP1 or FSDP2; the two of FSDP compute in bfloat16."""
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard

    found, model = Found(), toy()
    if name == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif name == "fsdp":
        precision = MixedPrecision(torch.bfloat16, torch.float32)
        model = FullyShardedDataParallel(model, use_orig_params=True, mixed_precision=precision)
    else:
        fully_shard(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=name == "ddp")
    with watch(name, folder, model, optimizer):
        for step in range(STEPS):
            loss(model, step).backward()
            clip = getattr(model, "clip_grad_norm_", None)
            norm: Any = clip(0.5) if clip else torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            found.norms[step] = float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
            optimizer.step()
            optimizer.zero_grad()
    for key, parameter in model.named_parameters():
        value = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found.weights[key.replace("_fsdp_wrapped_module.", "").removeprefix("module.")] = value.detach().clone()
    return found


def megatron_case(name: str, folder: str) -> Found:
    """Megatron's own float16 optimizers, on the device they are made for; the scale begins too high here as well."""
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.transformer_config import TransformerConfig

    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1)
    shards = name.endswith("distributed")
    shape = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 64}
    config = TransformerConfig(
        **shape, hidden_dropout=0.0, attention_dropout=0.0, fp16=True, params_dtype=torch.float16,
        gradient_accumulation_fusion=False, use_cpu_initialization=True,
    )  # fmt: skip
    gpt = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=VOCABULARY, max_sequence_length=16).cuda()
    buckets = DistributedDataParallelConfig(use_distributed_optimizer=shards, grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config, buckets, Float16Module(config, gpt))
    options = OptimizerConfig(
        optimizer="adam", lr=1e-3, fp16=True, params_dtype=torch.float16, use_distributed_optimizer=shards,
        clip_grad=0.5, initial_loss_scale=2.0**26, hysteresis=1, loss_scale_window=100,
    )  # fmt: skip
    optimizer = get_megatron_optimizer(options, [model])
    found = Found()
    positions = torch.arange(16, device="cuda").expand(8, 16)
    mask = torch.ones(1, 1, 16, 16, device="cuda").tril() < 0.5
    with watch(name, folder, model, optimizer):
        for step in range(STEPS):
            model.zero_grad_buffer()
            optimizer.zero_grad()
            ids = torch.randint(0, VOCABULARY, (8, 16), generator=torch.Generator().manual_seed(step)).cuda()
            optimizer.scale_loss(model(ids, positions, mask, labels=ids).float().mean()).backward()
            finalize_model_grads([model], None)
            success, norm, _ = optimizer.step()
            if success:
                found.norms[step] = float(norm)
            else:
                found.skipped.append(step)
    found.weights = {key: parameter.detach().clone() for key, parameter in gpt.named_parameters()}
    parallel_state.destroy_model_parallel()
    return found


CASES: dict[str, Callable[[str, str], Found]] = {
    **dict.fromkeys(("ddp", "fsdp", "fsdp2"), torch_case),
    **dict.fromkeys(("megatron", "megatron-distributed"), megatron_case),
}


def check(name: str, folder: str, found: Found) -> str:
    """Compare the run with the runtime's own numbers; in words."""
    run = vario.open_run(Path(folder) / name)
    steps = run.steps().tolist()
    assert steps == list(range(STEPS)), f"steps {steps}"
    marked = run.series("skipped_step", "scalar") if "skipped_step" in run.targets("scalar") else None
    skipped = (
        [] if marked is None else [int(at) for at, is_so in zip(marked.steps, marked.values, strict=True) if is_so]
    )
    assert skipped == found.skipped, f"skipped {skipped}, the runtime says {found.skipped}"
    squares = dict.fromkeys(steps, 0.0)
    for target in run.targets("gradient"):
        norms = run.series(target, "gradient")
        for step, norm in zip(norms.steps, norms.values, strict=True):
            squares[int(step)] += norm**2
    worst = max(abs(math.sqrt(squares[step]) / norm - 1) for step, norm in found.norms.items())
    # float16 gradients are unscaled before the norm is taken, by the runtime in its own precision.
    assert worst < 2e-3, f"norm of all gradients is off by {worst:.2e}"
    off = 0.0
    for target, weight in found.weights.items():
        recorded = run.series(target, "weight").values[-1]
        off = max(off, abs(recorded / float(weight.double().norm()) - 1))
    assert off < 1e-3, f"weights are off by {off:.2e}"
    moments = len(run.targets("moment"))
    assert moments == 2 * len(run.targets("weight")), "moments are missing"
    return f"{len(found.norms)} updates, {len(skipped)} skipped, gradient norm within {worst:.1e}, weights {off:.1e}"


def main() -> None:
    dist.init_process_group("nccl", device_id=torch.device("cuda", 0))
    failed = 0
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(f"{name}: {check(name, folder, CASES[name](name, folder))}", flush=True)
            except Exception as error:  # noqa: BLE001 - the next case says more
                failed += 1
                print(f"{name}: FAILED: {type(error).__name__}: {error}", flush=True)
    dist.destroy_process_group()
    sys.exit(failed)


if __name__ == "__main__":
    main()
