"""The cost of watching models of transformers: step time of rounds that take turns, against the unwatched loop.

    python bench/overhead.py --models                     all of them, on a CUDA GPU
    python bench/overhead.py --models gpt2 moe --rounds 4

On a CPU the models are tiny: a check that the bench runs, not a measurement.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import vario

OPTIONS: dict[str, dict[str, Any] | None] = {
    "unwatched": None,
    "default": {},
    "gradients": {"quantities": ["gradient"], "every": 1, "rules": ()},
    "gradients, weights, moments": {"quantities": ["gradient", "weight", "moment"], "every": 1, "rules": ()},
    "activations and their gradients": {
        "quantities": ["activation", "activation_gradient"],
        "every": 1,
        "rules": (),
    },
}
WARM_UP, OF_DEFAULT = 8, 70
"""Steps before the clock starts: which tensors keep their values is known after some, and the default records more in
its first dozens than later."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, the shape of its batches, and how many steps a round has."""

    make: Callable[[bool], Any]
    shape: tuple[int, int]
    steps: int
    autocast: bool = False


def _gpt2(tiny: bool) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    size = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 128, "n_positions": 64} if tiny else {}
    return GPT2LMHeadModel(GPT2Config(use_cache=False, bos_token_id=0, eos_token_id=0, **size))


def _llama(layers: int, width: int, heads: int) -> Callable[[bool], Any]:
    def make(tiny: bool) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        size = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
        size |= {"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 32000}
        if tiny:
            size = dict.fromkeys(size, 2) | {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 128}
        return LlamaForCausalLM(LlamaConfig(use_cache=False, **size)).bfloat16()

    return make


def _moe(tiny: bool) -> Any:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    width = 32 if tiny else 1024
    size = {"hidden_size": width, "intermediate_size": 2 * width, "moe_intermediate_size": width // 2, "head_dim": 16}
    size |= {"vocab_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    if not tiny:
        size |= {"vocab_size": 32000, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4}
        size["head_dim"] = 64
    experts = {"num_experts": 4 if tiny else 32, "num_experts_per_tok": 2 if tiny else 4}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(use_cache=False, **size, **experts)).bfloat16()


CASES = {
    "llama1b": Case(_llama(16, 2048, 32), (8, 2048), 6),
    "llama3b": Case(_llama(28, 3072, 24), (4, 2048), 6),
    "gpt2-large-batch": Case(_gpt2, (8, 1024), 20, autocast=True),
    "gpt2": Case(_gpt2, (1, 512), 30, autocast=True),
    "moe": Case(_moe, (4, 1024), 10),
}


def measure(names: list[str], rounds: int) -> dict[str, list[float]]:
    """Print a table of overheads for these cases; return the ratios to the unwatched step."""
    kept: dict[str, list[float]] = {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"\n{torch.cuda.get_device_name() if device == 'cuda' else 'CPU, tiny models'}, torch {torch.__version__}\n")
    print("| model | watched | step, ms | overhead | of single rounds | extra peak memory |", flush=True)
    print("| --- | --- | ---: | ---: | --- | ---: |", flush=True)
    for name in names or CASES:
        found, peaks = _rounds(CASES[name], rounds, device)
        for watched, seconds in found.items():
            ratios = [100 * (own / plain - 1) for own, plain in zip(seconds, found["unwatched"], strict=True)]
            spread = f"{min(ratios):+.1f} to {max(ratios):+.1f} %"
            step = f"{1e3 * statistics.median(seconds):.2f}"
            extra = f"{100 * (peaks[watched] / peaks['unwatched'] - 1):+.2f} %" if peaks["unwatched"] else ""
            print(
                f"| {name} | {watched} | {step} | {statistics.median(ratios):+.1f} % | {spread} | {extra} |", flush=True
            )
            if watched != "unwatched":
                kept[f"{name}: {watched}"] = [1 + ratio / 100 for ratio in ratios]
    return kept


def _rounds(case: Case, rounds: int, device: str) -> tuple[dict[str, list[float]], dict[str, int]]:
    torch.manual_seed(0)
    is_tiny = device == "cpu"
    model = case.make(is_tiny).to(device)
    shape = (1, 16) if is_tiny else case.shape
    batches = [torch.randint(0, 128, shape, device=device) for _ in range(case.steps + OF_DEFAULT)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def step(ids: torch.Tensor) -> None:
        with torch.autocast(device, torch.bfloat16, enabled=case.autocast):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    peaks = dict.fromkeys(OPTIONS, 0)

    def one_round(watched: str) -> float:
        options = OPTIONS[watched]
        with tempfile.TemporaryDirectory() as folder:
            monitor = None if options is None else vario.watch(model, optimizer, directory=folder, **options)
            for ids in batches[: WARM_UP if options else OF_DEFAULT]:
                step(ids)
            _finish(device)
            if not is_tiny:
                torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            for ids in batches[-case.steps :]:
                step(ids)
            _finish(device)
            seconds = (time.perf_counter() - began) / case.steps
            peaks[watched] = 0 if is_tiny else torch.cuda.max_memory_allocated()
            if monitor is not None:
                monitor.close()
            return seconds

    for watched in OPTIONS:
        one_round(watched)  # compiles kernels
    turns = [{watched: one_round(watched) for watched in OPTIONS} for _ in range(rounds)]
    return {watched: [turn[watched] for turn in turns] for watched in OPTIONS}, peaks


def _finish(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
