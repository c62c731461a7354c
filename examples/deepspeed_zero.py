"""Watch DeepSpeed with ZeRO 3 on two processes: each rank records its shards, and the reader merges them.

torchrun --standalone --nproc-per-node 2 examples/deepspeed_zero.py && vario report
"""

import logging
import os
import warnings

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed

import vario

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "zero_allow_untested_optimizer": True,  # a torch optimizer, rather than one of DeepSpeed's own
}


def main() -> None:
    warnings.filterwarnings("ignore", "`torch.distributed", FutureWarning)  # DeepSpeed uses torch's older names
    deepspeed.utils.logger.setLevel(logging.WARNING)
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # saves minutes of compiling for inference
    deepspeed.init_distributed(dist_backend="nccl" if torch.cuda.is_available() else "gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)

    torch.manual_seed(rank)  # each rank has its own rows
    with vario.watch(engine, every=1) as monitor:
        for _ in range(60):
            rows = torch.randn(16, 8, device=engine.device, dtype=torch.bfloat16)
            loss = torch.nn.functional.mse_loss(engine(rows), rows.sum(1, keepdim=True))
            engine.backward(loss)
            engine.step()  # an update every second time
            monitor.log(loss=loss)
    torch.distributed.barrier()
    if rank == 0:
        run = vario.open_run(monitor.path)
        norms = run.series("0.weight", "gradient", rank="all")
        print(f"{run.path}: {len(norms)} steps on {len(run.ranks)} ranks; the whole gradient of 0.weight:", end=" ")
        print(f"from {norms.values[0]:.2f} to {norms.values[-1]:.2f}")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
