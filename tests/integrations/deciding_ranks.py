"""Run by torch.distributed.run on two ranks: one of them meets something, and all of them save and stop, or none."""

import json
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_trainer import made, tiny_gpt

from vario import MonitorCallback
from vario.integrations import deciding
from vario.rules import Finding, rule

STEPS = 40


@rule("exact")
def only_on_rank_one(step):
    """Finds something that no other rank can know of."""
    if step.number == 5 and step.facts.rank == 1:
        yield Finding("rank 1 is special", "scalar", "loss", 1.0)


@rule("exact")
def on_any_rank(step):
    """Finds something on every rank."""
    if step.number == 5:
        yield Finding("step 5 is special", "scalar", "loss", 1.0)


def options(found, name):
    return {
        "print_model_summary": False,
        "directory": "runs",
        "name": name,
        "quantities": ["gradient"],
        "rules": [found],
        "actions": {"page": ["checkpoint", "stop", "snapshot"]},
    }


def with_transformers(name, callbacks):
    folder = Path(name)
    trainer = made(folder, callbacks, tiny_gpt(), max_steps=STEPS, ddp_backend="gloo", ddp_find_unused_parameters=False)
    trainer.train()
    told(name, trainer.state.global_step)


def with_lightning(name):
    import lightning

    from vario.integrations.lightning import MonitorCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Linear(4, 3)

        def training_step(self, rows, index):
            return self.net(rows).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=1,
        callbacks=[MonitorCallback(**options(only_on_rank_one, name))],
        default_root_dir=name,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(2 * STEPS, 4)))
    told(name, trainer.global_step)


def told(name, steps):
    Path(f"{name}-rank{dist.get_rank()}.json").write_text(json.dumps(steps))


def main():
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # the trainers' own
    # A rank without the callback is waited for; here not as long.
    deciding.WAIT_SECONDS = 1.0
    dist.init_process_group("gloo")
    with_transformers("both", [MonitorCallback(**options(only_on_rank_one, "both"))])
    with_lightning("lightning")
    alone = [MonitorCallback(**{**options(on_any_rank, "alone"), "ranks": [0]})] if dist.get_rank() == 0 else []
    with_transformers("alone", alone)


if __name__ == "__main__":
    main()
