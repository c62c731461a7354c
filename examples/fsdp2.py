"""Watch FSDP2 on two ranks: each rank records its shards, and the reader merges them into whole parameters.

torchrun --standalone --nproc-per-node 2 examples/fsdp2.py && vario report
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import vario


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 33), torch.nn.GELU(), torch.nn.Linear(33, 1))
    for layer in (model[0], model[2]):
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = torch.Generator().manual_seed(dist.get_rank())

    with vario.watch(model, optimizer, every=1) as monitor:
        for _ in range(30):
            rows = torch.randn(32, 8, generator=batches)
            loss = torch.nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss.item())
    dist.barrier()

    if dist.get_rank() == 0:
        run = vario.open_run(monitor.path)
        print(f"{run.path}: mesh {run.mesh}, loss {run.series('loss', 'scalar').values[-1]:.3f}")
        for rank in (*run.ranks, "all"):
            count, norm = (run.series("0.weight", "weight", name, rank=rank).values[-1] for name in ("count", "norm"))
            print(f"0.weight, rank {rank}: {count:.0f} elements, norm {norm:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
