"""The cost of watching collectives on the CPU: microseconds of the calling thread per `all_reduce`.

    python bench/collectives.py

One rank in its own group, so that it waits for no other process; thread time, so that a busy machine does not matter.
Best of ten batches. The cost of reading grows with the tensor; see bench/overhead.py for whole training runs.
"""

import time

import torch
import torch.distributed as dist

import vario

NUM_CALLS = 300


def microseconds(size: int) -> float:
    """Of one call, as things are now."""
    x = torch.zeros(size)
    batches = []
    for _ in range(10):
        began = time.thread_time()
        for _ in range(NUM_CALLS):
            dist.all_reduce(x)
        batches.append(time.thread_time() - began)
    return min(batches) / NUM_CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    options = {"quantities": ["communication"], "sinks": ["in_memory"]}
    print(f"torch {torch.__version__}, float32\n{'elements':>10} {'alone':>8} {'not watched':>12} {'watched':>8}")
    for size in (16, 65_536, 1_048_576):
        alone = microseconds(size)
        idle = vario.watch(torch.nn.Linear(1, 1), every=1000, **options)
        for _ in range(3):
            idle.step()
        unwatched = microseconds(size)
        idle.close()
        with vario.watch(torch.nn.Linear(1, 1), every=1, **options):
            watched = microseconds(size)
        print(f"{size:>10} {alone:8.1f} {unwatched:12.1f} {watched:8.1f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
