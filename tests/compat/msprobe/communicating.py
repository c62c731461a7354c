"""Run by torchrun: two ranks train under DDP and share their loss, with a TrainerMon on `cc_distribution`."""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import training
from vario.compat.msprobe import TrainerMon
from vario.compat.msprobe.communication import CommunicationLogged

LINE = "# shares the loss"


def main(folder, jobs):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name, config in jobs.items():
        out = folder / name
        out.mkdir(exist_ok=True)
        os.environ["MONITOR_OUTPUT_DIR"] = str(out)
        path = folder / f"{name}-{rank}.json"
        path.write_text(json.dumps(config))
        sys.stderr = (out / f"stderr{rank}.txt").open("w")
        torch.manual_seed(0)
        model = DistributedDataParallel(training.Perceptron())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        monitor = TrainerMon(path)
        monitor.set_monitor(model, grad_acc_steps=2, optimizer=optimizer)
        shown, stopped = [], None
        try:
            for step in range(3):
                with model.no_sync():
                    model(torch.randn(4, 6)).square().mean().backward()
                loss = model(torch.randn(4, 6)).square().mean()
                loss.backward()
                pair = torch.stack([loss.detach(), torch.tensor(float(rank + step))])
                before = pair.norm().item()
                dist.all_reduce(pair)  # shares the loss
                shown.append([before, pair.norm().item()])
                optimizer.step()
                optimizer.zero_grad()
        except CommunicationLogged as error:
            stopped = str(error)
        monitor.close()
        sys.stderr.close()
        sys.stderr = sys.__stderr__
        (out / f"said{rank}.json").write_text(json.dumps({"shown": shown, "stopped": stopped}))
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
