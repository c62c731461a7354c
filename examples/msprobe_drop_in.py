"""Use vario as a drop-in for msprobe's TrainerMon: write CSV files to ./monitor_output and import them as a run.

python examples/msprobe_drop_in.py && vario report
"""

import json
from pathlib import Path

import torch

from vario.compat.msprobe import TrainerMon  # was: from msprobe.pytorch import TrainerMon
from vario.compat.msprobe.importing import import_msprobe

CONFIG = {
    "targets": {},
    "wg_distribution": True,
    "xy_distribution": True,
    "ops": ["norm", "min", "max", "nans"],
    "step_count_per_record": 10,
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 30.0}}], "dump": True},
}


def main(num_steps: int = 30) -> None:
    """Train a small network to add its inputs; halfway, one batch is a hundred times too large."""
    config = Path("monitor_config.json")
    config.write_text(json.dumps(CONFIG, indent=2))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    monitor = TrainerMon(config, params_have_main_grad=False)
    monitor.set_monitor(model, grad_acc_steps=1, optimizer=optimizer)
    for step in range(num_steps):
        inputs = torch.randn(64, 8) * (100 if step == num_steps // 2 else 1)
        loss = torch.nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    monitor.close()

    (folder,) = Path("monitor_output").glob("*-rank0-*")
    print(folder, "has", len(list(folder.glob("*.csv"))), "files")
    print("imported as a vario run:", import_msprobe("monitor_output").path)


if __name__ == "__main__":
    main()
