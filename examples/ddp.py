"""Watch DistributedDataParallel on two ranks: local gradients, reduced gradients, and whether replicas are in sync.

torchrun --standalone --nproc-per-node 2 examples/ddp.py && vario report
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vario


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = (torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = torch.Generator().manual_seed(dist.get_rank())

    with vario.watch(model, optimizer, quantities=["weight", "gradient", "gradient_local"], every=1) as monitor:
        for _ in range(30):
            with model.no_sync():
                loss_of(model, batches).backward()
            loss = loss_of(model, batches)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss.item())
    dist.barrier()

    if dist.get_rank() == 0:
        run = vario.open_run(monitor.path)
        print(f"{run.path}: norm of the gradient of 0.weight at the last step")
        for rank in run.ranks:
            both = run.series("0.weight", "gradient_local", rank=rank, micro_steps=True).values[-2:]
            print(f"  as rank {rank} computed it, pass by pass: {both[0]:.4f}, {both[1]:.4f}")
        print(f"  reduced: {run.series('0.weight', 'gradient').values[-1]:.4f}")
        print("first difference between replicas:", vario.first_desync(run))
    dist.destroy_process_group()


def loss_of(model: torch.nn.Module, batches: torch.Generator) -> torch.Tensor:
    rows = torch.randn(32, 8, generator=batches)
    return torch.nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True)) / 2


if __name__ == "__main__":
    main()
