"""Trains a tiny model under msprobe and converts its files with msprobe: `python peer_conversions.py WORK ...`.

`train` and `tensorboard` need release 26.2.0 on the path, `sqlite` 8.3.0.
"""

import json
import os
import sys
from pathlib import Path


def train(base):
    import torch

    os.environ["MONITOR_OUTPUT_DIR"] = str(base / "in")
    from msprobe.pytorch import TrainerMon

    torch.manual_seed(0)
    layers = [torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 5)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters())
    ops = ["norm", "min", "max", "mean", "zeros", "nans"]
    tasks = ["xy_distribution", "wg_distribution", "param_distribution", "mv_distribution", "mg_direction"]
    config = base / "config.json"
    config.write_text(json.dumps({"targets": {}, "ops": ops, "step_count_per_record": 3} | dict.fromkeys(tasks, True)))
    config.chmod(0o640)
    monitor = TrainerMon(str(config), params_have_main_grad=False)
    monitor.set_monitor(model, optimizer=optimizer, grad_acc_steps=2)
    for step in range(8):
        for _ in range(2):
            model(torch.tensor([[0, 1, 2, 3]])).square().mean().backward()
        if step == 6:
            model[3].weight.grad[0, 0] = float("inf")
        optimizer.step()
        optimizer.zero_grad()


def tensorboard(base):
    from msprobe.pytorch.monitor.csv2tb import csv2tensorboard_by_step

    csv2tensorboard_by_step(str(base / "in"), process_num=1, output_dirpath=str(base / "tensorboard"))


def sqlite(base):
    from msprobe.core.monitor.csv2db import CSV2DBConfig, csv2db

    csv2db(CSV2DBConfig(str(base / "in"), step_partition=10, output_dirpath=str(base / "sqlite")))


if __name__ == "__main__":
    for word in sys.argv[2:]:
        {"train": train, "tensorboard": tensorboard, "sqlite": sqlite}[word](Path(sys.argv[1]))
