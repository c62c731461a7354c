"""Three ranks of which one goes its own way and another meets an odd batch, while somebody watches from outside."""

import json
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import vario
from models import Perceptron, batch

STEPS, DESYNC, LOOKED_AT, ODD = 60, 12, 25, 45
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(Perceptron(dropout=0.0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
found = pathlib.Path("runs/watched/watch/incidents.jsonl")
quantities = ["gradient", "gradient_local", "weight", "activation"]
options = {"directory": "runs", "name": "watched", "quantities": quantities, "every": 1, "strict": True}
with vario.watch(model, optimizer, **options) as monitor:
    for step in range(STEPS):
        if step == DESYNC and rank == 2:
            with torch.no_grad():
                next(model.parameters()).add_(1e-3)
        if step == LOOKED_AT and rank == 0:
            # Training goes on when the watcher has said what went wrong: it does so while we train, or never.
            deadline = time.monotonic() + 60
            while not found.exists() or "replica_desync" not in found.read_text():
                assert time.monotonic() < deadline, "nobody watches"
                time.sleep(0.02)
        optimizer.zero_grad()
        loss = model(batch(step + 100 * rank) * (50 if step == ODD and rank == 1 else 1)).square().mean()
        loss.backward()
        optimizer.step()
        monitor.log(loss=loss)
dist.destroy_process_group()
if rank == 0:
    pathlib.Path("done.json").write_text(json.dumps({"desync": DESYNC, "odd": ODD}))
