"""A training with DeepSpeed that knows nothing of vario: torchrun deepspeed_script.py STAGE"""

import logging
import os
import sys

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
import toys

torch.set_num_threads(1)
deepspeed.utils.logger.setLevel(logging.ERROR)
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # its build takes minutes and serves inference
deepspeed.init_distributed(dist_backend="gloo")
net = toys.make()
config = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": toys.CLIP,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
engine, *_ = deepspeed.initialize(model=net, optimizer=toys.adam(net), config=config)
for step in range(toys.STEPS):
    for micro_step in range(2):
        engine.backward(toys.loss(engine, toys.tokens(step, micro_step, dist.get_rank())))
        engine.step()
dist.destroy_process_group()
