"""DeepSpeed under accelerate and under Hugging Face's Trainer: torchrun deepspeed_trainers.py CASE ..."""

import logging
import os
import sys
from pathlib import Path

os.environ.update(DS_ACCELERATOR="cpu", ACCELERATE_USE_DEEPSPEED="true")

import deepspeed
import tiny_trainer
import torch
import torch.distributed as dist
import toys
from accelerate import Accelerator, DeepSpeedPlugin, PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import InitProcessGroupKwargs
from transformers import Trainer

from vario.integrations.accelerate import watch
from vario.integrations.transformers import MonitorCallback

QUANTITIES = ["weight", "gradient", "gradient_local", "gradient_applied", "moment"]


def settings(stage):
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": toys.CLIP,
        "zero_optimization": {"stage": stage},
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
    }


def options(case):
    return {"directory": "runs", "name": case, "every": 1, "strict": True, "quantities": QUANTITIES}


def accelerate(case, stage):
    plugin = DeepSpeedPlugin(hf_ds_config=settings(stage))
    handlers = [InitProcessGroupKwargs(backend="gloo")]
    accelerator = Accelerator(kwargs_handlers=handlers, deepspeed_plugin=plugin, gradient_accumulation_steps=2)
    net = toys.make()
    model, optimizer = accelerator.prepare(net, toys.adam(net))
    with watch(accelerator, model, optimizer, **options(case)) as monitor:
        for step in range(toys.STEPS):
            for micro_step in range(2):
                with accelerator.accumulate(model):
                    accelerator.backward(toys.loss(model, toys.tokens(step, micro_step, dist.get_rank())))
                    optimizer.step()
                    optimizer.zero_grad()
            assert monitor.next_step_number == step + 1


class InOrder(Trainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def trainer(case, stage):
    PartialState(backend="gloo")  # else the Trainer believes that it is alone
    more = {"deepspeed": {**settings(stage), "gradient_clipping": "auto"}, "use_cpu": False}
    more |= {"accelerator_config": {"use_configured_state": True}, "gradient_accumulation_steps": 2, "max_steps": 3}
    more |= {"adam_epsilon": 1e-3}
    callback = MonitorCallback(print_model_summary=False, **options(case))
    made = tiny_trainer.made(Path(case), [callback], tiny_trainer.tiny_gpt(dropout=0.0), InOrder, **more)
    made.train()
    assert made.args.world_size == 2
    assert made.state.global_step == made.deepspeed.global_steps == 3


def main():
    torch.set_num_threads(1)
    deepspeed.utils.logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its build takes minutes and serves inference
    for case in sys.argv[1:]:
        # Accelerators share their state within a process.
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        {"accelerate": accelerate, "trainer": trainer}[case[:-1]](case, int(case[-1]))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
