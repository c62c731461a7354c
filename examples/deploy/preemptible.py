"""Train so that a scheduler may stop it at any time: SIGTERM writes a checkpoint, and starting it again goes on.

python examples/deploy/preemptible.py checkpoint.pt
"""

import os
import signal
import sys
import threading
from pathlib import Path

import torch

import vario

STEPS = int(os.environ.get("STEPS", "2000"))


def main(checkpoint: Path) -> None:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first_step = 0
    if checkpoint.exists():
        stored = torch.load(checkpoint)
        model.load_state_dict(stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        first_step = stored["step"]

    # The same name in each attempt, and the step that the checkpoint goes on with: one run, without a gap or a repeat.
    with vario.watch(model, optimizer, name=checkpoint.stem, resume=True, first_step=first_step) as monitor:
        monitor.log(total_steps=STEPS)
        for step in range(first_step, STEPS):
            batch = torch.randn(32, 16, generator=torch.Generator().manual_seed(step))
            loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.log(loss=loss.item())
            if stopping.is_set() or step + 1 == STEPS:
                stored = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
                torch.save(stored, checkpoint.with_suffix(".new"))
                os.replace(checkpoint.with_suffix(".new"), checkpoint)
            if stopping.is_set() and step + 1 < STEPS:
                sys.exit(143)  # 128 + SIGTERM: the run is `interrupted`, not crashed


if __name__ == "__main__":
    main(Path(sys.argv[1]))
