"""accelerate, Hugging Face's Trainer and Lightning on several ranks: torchrun trainer_engines.py CASE ...

A case is trainer, engine and what is special about it: `accelerate-fsdp2-x2`. The batches do not come from a loader but
from the step, the pass and the rank, so that one process can train on the same.
"""

import sys
import warnings

import torch
import torch.distributed as dist
import toys

import vario

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_accumulated", "gradient_applied", "moment"]
QUANTITIES += ["activation"]
CPU = torch.device("cpu")


def options(case):
    return {"directory": "runs", "name": case, "every": 1, "strict": True, "quantities": QUANTITIES}


def offer_fsdp_on_cpu():
    """accelerate offers FSDP for GPUs only; what it does then is the same on CPUs."""
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    PartialState(cpu=True)
    PartialState._shared_state.update(distributed_type=DistributedType.MULTI_GPU, device=CPU)


def with_accelerate(case, engine, accumulation):
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, GradientState, PartialState

    from vario.integrations.accelerate import watch

    for state in (AcceleratorState, GradientState, PartialState):
        state._shared_state.clear()
    plugin = None
    if engine.startswith("fsdp"):
        offer_fsdp_on_cpu()
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2 if engine == "fsdp2" else 1,
            use_orig_params=True if engine == "fsdp" else None,
            auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=["Block"],
        )
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=accumulation)
    model = toys.make(spare=False)
    model, optimizer = accelerator.prepare(model, toys.adam(model))
    with watch(accelerator, model, optimizer, **options(case)):
        for step in range(toys.STEPS):
            for micro_step in range(accumulation):
                with accelerator.accumulate(model):
                    accelerator.backward(toys.loss(model, toys.tokens(step, micro_step, dist.get_rank())))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), toys.CLIP)
                    optimizer.step()
                    optimizer.zero_grad()


def with_transformers(case, engine, accumulation):
    from transformers import Trainer, TrainingArguments

    class Counted(Trainer):
        passes = 0

        def create_optimizer(self, model=None):
            self.optimizer = toys.adam(model or self.model)
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda _: 1.0)
            return self.lr_scheduler

        def compute_loss(self, model, inputs, **_):
            batch = toys.tokens(self.passes // accumulation, self.passes % accumulation, dist.get_rank())
            self.passes += 1
            return toys.loss(model, batch)

    more = {}
    if engine == "fsdp2":
        offer_fsdp_on_cpu()
        more = {
            "accelerator_config": {"use_configured_state": True},
            "fsdp": "full_shard auto_wrap",
            "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["Block"]},
        }
    arguments = TrainingArguments(
        "trained",
        use_cpu=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=accumulation,
        max_steps=toys.STEPS,
        max_grad_norm=toys.CLIP,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        **more,
    )
    rows = [{"input_ids": torch.zeros(1, dtype=torch.long)}] * 64
    callback = vario.MonitorCallback(print_model_summary=False, **options(case))
    Counted(toys.make(spare=False), arguments, train_dataset=rows, callbacks=[callback]).train()


def with_lightning(case, engine, accumulation):
    import lightning
    from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from vario.integrations.lightning import MonitorCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.toy = toys.make(spare=False)

        def configure_model(self):
            if engine == "fsdp2" and not hasattr(self.toy.head.weight, "placements"):
                for block in self.toy.blocks:
                    fully_shard(block, mesh=self.device_mesh["data_parallel"])
                fully_shard(self.toy, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, at):
            return toys.loss(self.toy, toys.tokens(at // accumulation, at % accumulation, self.global_rank))

        def configure_optimizers(self):
            return toys.adam(self.toy)

    strategy = (
        ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1) if engine == "fsdp2" else DDPStrategy()
    )
    callback = MonitorCallback(print_model_summary=False, **options(case))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=dist.get_world_size() if dist.is_initialized() else 2,
        strategy=strategy,
        max_steps=toys.STEPS,
        accumulate_grad_batches=accumulation,
        gradient_clip_val=toys.CLIP if engine == "ddp" else None,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(Module(), torch.utils.data.DataLoader([torch.zeros(1)] * 64))


def main():
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # the trainers' own
    dist.init_process_group("gloo")
    trainers = {"accelerate": with_accelerate, "transformers": with_transformers, "lightning": with_lightning}
    for case in sys.argv[1:]:
        trainer, engine, *traits = case.split("-")
        trainers[trainer](case, engine, 2 if "x2" in traits else 1)


if __name__ == "__main__":
    main()
