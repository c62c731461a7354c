"""Time of the kernels that count elements by bin, beside that of the Summaries of the same tensors, on a CUDA device.

python bench/distributions_cuda.py [billions of elements]
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from vario.backends.torch.reduce.distributions import TorchDistributions
from vario.backends.torch.reduce.summaries import TorchSummaries
from vario.core.records import COLUMNS


def seconds(call: Callable[[], None], times: int = 5) -> float:
    """Return the median time of the device for a call."""
    found = []
    for _ in range(times + 2):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        call()
        ended.record()
        torch.cuda.synchronize()
        found.append(began.elapsed_time(ended) / 1e3)
    return sorted(found[2:])[times // 2]


def main() -> None:
    """Print a line per dtype and kind of tensor."""
    billions = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    num = int(billions * 1e9 / 64)
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), torch.__version__)
    for dtype in (torch.bfloat16, torch.float32):
        made = {
            "normal": [torch.randn(num, device="cuda", dtype=dtype) * 0.02 for _ in range(64)],
            "zeros": [torch.zeros(num, device="cuda", dtype=dtype) for _ in range(64)],
            "relu": [torch.randn(num, device="cuda", dtype=dtype).relu() for _ in range(64)],
        }
        for kind, tensors in made.items():
            distributions, summaries = TorchDistributions(), TorchSummaries(1e-8, frozenset(COLUMNS))

            def counts(tensors: list[torch.Tensor] = tensors, counter: TorchDistributions = distributions) -> None:
                counter.count_rows(range(64), tensors)
                counter.collect_rows()

            def singly(tensors: list[torch.Tensor] = tensors, counter: TorchDistributions = distributions) -> None:
                for row, tensor in enumerate(tensors):
                    counter.count_rows([row], [tensor])
                counter.collect_rows()

            def sums(tensors: list[torch.Tensor] = tensors, reducer: TorchSummaries = summaries) -> None:
                reducer.observe_many(tensors, None, "x")
                reducer.collect()

            took = {"list": seconds(counts), "one by one": seconds(singly), "Summaries": seconds(sums)}
            speeds = ", ".join(
                f"{name} {1e3 * each:.2f} ms ({64 * num / each / 1e9:.0f} G/s)" for name, each in took.items()
            )
            print(f"{dtype} {kind}: {speeds}", flush=True)
        del made


if __name__ == "__main__":
    main()
