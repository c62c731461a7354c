"""Watch FSDP1 on two ranks. It needs `use_orig_params=True`: otherwise its parameters have no names.

torchrun --standalone --nproc-per-node 2 examples/fsdp.py && vario report
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel

import vario


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = (torch.nn.Linear(8, 33), torch.nn.GELU(), torch.nn.Linear(33, 1))
    model = FullyShardedDataParallel(torch.nn.Sequential(*layers), use_orig_params=True, device_id=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = torch.Generator().manual_seed(dist.get_rank())

    with vario.watch(model, optimizer, quantities=["gradient", "gradient_local", "moment"], every=1) as monitor:
        for _ in range(30):
            rows = torch.randn(32, 8, generator=batches).to(device)
            loss = torch.nn.functional.mse_loss(model(rows), rows.sum(1, keepdim=True))
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss.item())
    dist.barrier()

    if dist.get_rank() == 0:
        run = vario.open_run(monitor.path)
        for parameter in run.structure()["parameters"]:
            print(f"{parameter['name']}: this rank has elements {parameter['range']} of {parameter['shape']}")
        print("norm of exp_avg of 0.weight, whole:", run.series("0.weight:exp_avg", "moment").values[-1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
